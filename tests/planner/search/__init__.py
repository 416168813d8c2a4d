"""Tests of simserve.planner.search."""
