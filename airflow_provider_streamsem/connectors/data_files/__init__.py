"""Data files: writes and reads them with Spark, pins them in a plan, and computes their row counts, checksums and column statistics."""
