"""Fits of the model's constants to measurements. Knows no command and no picture."""
