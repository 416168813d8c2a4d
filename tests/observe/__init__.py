"""Tests of measuring live servers."""
