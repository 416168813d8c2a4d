"""Tests of the twin."""
