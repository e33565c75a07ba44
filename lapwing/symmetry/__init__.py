"""Learning symmetries."""
