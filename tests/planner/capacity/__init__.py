"""Tests of simserve.planner.capacity."""
