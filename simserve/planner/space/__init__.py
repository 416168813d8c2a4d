"""What can be deployed instead: the dimensions of a search."""
