"""Tests of the catalogues: hardware, models, engines."""
