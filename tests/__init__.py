"""The tests of simserve, laid out as the package is."""
