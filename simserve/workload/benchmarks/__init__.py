"""Results of benchmark tools, each read by what its figures are defined to be."""
