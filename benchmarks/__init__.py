"""Measurements (`make bench`)."""
