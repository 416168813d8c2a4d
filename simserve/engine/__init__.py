"""The scheduler and KV state machine of one replica: pure functions over records, no clock and no chance of its own."""
