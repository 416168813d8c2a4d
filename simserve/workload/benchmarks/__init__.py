"""Results of benchmark tools, each read by its own definitions of the figures."""
