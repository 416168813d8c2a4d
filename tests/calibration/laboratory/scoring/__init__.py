"""Tests of `calibration.laboratory.scoring`."""
