"""What replayed points say of the simulator: in and out of sample, the model of errors, and the pages of both."""
