"""The state of a keyed transform: its settings, and the files in which a version keeps it."""
