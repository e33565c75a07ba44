"""A posterior without each of its training data, and what each does to the rest: no refitting."""
