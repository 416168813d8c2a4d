"""Tests of simserve.scenario."""
