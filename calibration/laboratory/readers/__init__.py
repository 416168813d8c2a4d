"""Measured serving figures as points that can be replayed: one reader per family of sources."""
