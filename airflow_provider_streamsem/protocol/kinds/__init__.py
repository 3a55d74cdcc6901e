"""The kinds of versions: one module each, and the registry."""
