"""The cluster on SimPy's clock: clients, routing, the data plane, and what is recorded of a run."""
