"""Lands queue messages: writes them to files before it acknowledges them."""
