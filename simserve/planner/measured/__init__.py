"""Measured servers as points that can be replayed, and the files of those that ship."""
