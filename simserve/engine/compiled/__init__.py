"""The kernel's own source, compiled by numba where it is installed: the same functions on flat memory."""
