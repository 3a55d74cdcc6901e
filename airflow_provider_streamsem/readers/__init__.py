"""Readers of the committed data of a log: for Spark, for other engines, and for verification."""
