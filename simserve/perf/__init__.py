"""Seconds and bytes of one engine step. Knows no requests, no clock and no dollars."""
