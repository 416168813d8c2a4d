"""Tests of simserve.perf."""
