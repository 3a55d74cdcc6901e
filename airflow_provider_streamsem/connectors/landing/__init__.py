"""Lands messages of a queue: writes them to files, and acknowledges them after that."""
