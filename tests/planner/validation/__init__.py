"""Tests of simserve.planner.validation."""
