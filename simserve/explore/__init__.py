"""`simserve explore`: a page to play with, on the real engine."""
