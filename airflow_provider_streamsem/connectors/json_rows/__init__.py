"""Converts rows and values to JSON."""
