"""The command line: one module a command group, each command a few lines over the public API."""
