"""Measuring kernels on the device at hand. PyTorch is imported here only, and only when a measurement starts."""
