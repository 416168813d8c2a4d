"""Tests of `calibration.laboratory.fits`."""
