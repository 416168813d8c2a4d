"""Tests of simserve.workload."""
