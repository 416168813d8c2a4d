"""Tests of simserve.planner.sweep."""
