"""Readers of recorded traffic, one module a format."""
