"""A small real continuous-batching engine: the rules of the simulator's scheduler on real kernels, in real time."""
