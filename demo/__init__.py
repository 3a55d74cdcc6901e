"""``make demo``."""
