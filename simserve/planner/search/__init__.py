"""The best fleet on one kind of GPU: bounds, then simulation."""
