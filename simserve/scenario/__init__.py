"""The scenario file: what is deployed, what arrives, what is asked; reading, resolving and running it."""
