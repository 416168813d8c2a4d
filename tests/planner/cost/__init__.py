"""Tests of simserve.planner.cost."""
