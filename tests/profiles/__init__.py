"""Tests of simserve.profiles."""
