"""Tests of `simserve.planner.importers`."""
