"""Writes data files with Spark, counts their rows, and computes their checksums and column statistics."""
