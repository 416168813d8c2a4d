"""Measured points replayed, and how far off the simulator is."""
