"""Replays measured points and says how far off the simulator is."""
