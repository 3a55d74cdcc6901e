"""Exact parsers of JSON and CSV, which Spark's Python workers run. They need only the standard library and pyarrow."""
