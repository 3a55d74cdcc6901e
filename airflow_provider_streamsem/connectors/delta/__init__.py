"""The Delta sink: writes rows to Delta tables."""
