"""The numbers that the source texts work out by hand, through the public functions of simserve."""
