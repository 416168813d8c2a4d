"""Evaluation of replayed points: errors in and out of sample, the model of errors, and the pages of both."""
