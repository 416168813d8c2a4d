"""From a scenario to what starts it: command lines of the engines, and Kubernetes manifests."""
