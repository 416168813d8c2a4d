"""Turns command lines, model configurations, benchmark results and traces into scenarios or profiles."""
