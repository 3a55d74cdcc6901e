"""Readers: what a log makes visible, for Spark, for other engines, and for whoever wants to check it."""
