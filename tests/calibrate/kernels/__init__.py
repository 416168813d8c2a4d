"""Tests of `simserve.calibrate.kernels` that need PyTorch; without it they skip."""
