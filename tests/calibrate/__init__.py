"""Tests of `simserve.calibrate`."""
