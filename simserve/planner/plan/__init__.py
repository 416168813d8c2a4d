"""What to deploy for a scenario's traffic at its objective."""
