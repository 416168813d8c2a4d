"""Tests of what a run says to a reader."""
