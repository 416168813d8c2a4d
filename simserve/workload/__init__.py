"""The traffic: what arrives when, drawn from distributions or read from a trace."""
