"""Tests of `simserve.reference`."""
