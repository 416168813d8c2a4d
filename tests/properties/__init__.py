"""Properties that hold for every configuration and every workload."""
