"""`simserve explore`: an interactive page on the real engine."""
