"""From the records of a run to its figures: latency, objectives, throughput, dollars, and the bottleneck."""
