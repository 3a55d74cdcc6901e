"""Sinks that stage Parquet files first and publish them after the commit."""
