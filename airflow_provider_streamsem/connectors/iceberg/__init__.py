"""Iceberg tables as source, sink and lookup."""
