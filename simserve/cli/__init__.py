"""The command line: one module per command group, each command a few lines over the public API."""
