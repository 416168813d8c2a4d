"""Plans against brute force."""
