"""Self-host or API, in dollars."""
