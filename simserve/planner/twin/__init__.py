"""What a running deployment shows beside its simulation, and the hours to come."""
