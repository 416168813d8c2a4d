"""Turns a scenario into what starts it: command lines of the engines, and Kubernetes manifests."""
