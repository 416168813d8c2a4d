"""Tests of `calibration.laboratory.readers`."""
