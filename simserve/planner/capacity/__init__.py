"""The highest load that a deployment can sustain within its objective."""
