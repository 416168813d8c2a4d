"""Readers of recorded traffic, one module per format."""
