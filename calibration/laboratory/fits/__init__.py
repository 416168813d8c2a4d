"""Fits of the catalogue's curves and constants to tables of kernels, and their errors."""
