"""Tests of files of other tools."""
