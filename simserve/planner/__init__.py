"""What is asked of many runs: how far their figures are from measured ones. Knows no command and no picture."""
