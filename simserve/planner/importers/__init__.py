"""Files of other tools read into profiles and scenarios."""
