"""Iceberg tables as a sink."""
