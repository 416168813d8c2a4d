"""The scenario file: what is deployed, what arrives, the objectives; reading, resolving and running it."""
