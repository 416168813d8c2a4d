"""Measured serving figures as points that can be replayed: one reader a family of sources."""
