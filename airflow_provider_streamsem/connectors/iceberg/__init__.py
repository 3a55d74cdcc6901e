"""The Iceberg sink: writes rows to Iceberg tables."""
