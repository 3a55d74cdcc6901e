"""Base classes of the sinks outside the log. They stage rows as Parquet files, and publish them after the commit."""
