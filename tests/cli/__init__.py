"""Tests of simserve.cli."""
