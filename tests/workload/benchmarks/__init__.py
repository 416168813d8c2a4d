"""Tests of the readers of benchmark results."""
