"""From what others wrote to a scenario or a profile: command lines, model configurations, benchmark results, traces."""
