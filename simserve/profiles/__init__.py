"""What things are: hardware, model and engine profiles, each number with its source."""
