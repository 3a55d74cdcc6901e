"""Data files that Spark writes: writer, row counts and column statistics."""
