"""A real vLLM on this machine's CPU: served, measured, calibrated, simulated and compared."""
