"""Tests of simserve.planner.plan."""
