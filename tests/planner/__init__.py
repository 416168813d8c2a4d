"""Tests of `simserve.planner`."""
