"""Tests of the figures: definitions, statistics, verdicts and files."""
