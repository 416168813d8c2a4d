"""Tests of what lies in calibration/."""
