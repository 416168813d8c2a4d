"""What a running deployment does compared with its simulation, and the hours to come."""
