"""Tests of `simserve.planner.export`."""
