"""Tests of `calibration.laboratory`."""
