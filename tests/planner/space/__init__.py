"""Tests of simserve.planner.space."""
