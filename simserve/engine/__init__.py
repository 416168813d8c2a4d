"""The scheduler and KV state machine of one replica: pure functions over records, without clock or random numbers."""
