"""The simulator against queueing theory: what follows from arithmetic must come out of a run."""
