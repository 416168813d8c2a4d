"""The largest load that a deployment bears within its objective."""
