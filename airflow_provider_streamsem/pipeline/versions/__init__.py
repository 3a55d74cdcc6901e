"""Versions: how they are created, closed, published and announced."""
