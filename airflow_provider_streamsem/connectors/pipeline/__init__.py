"""A source that reads the committed rows of another pipeline."""
