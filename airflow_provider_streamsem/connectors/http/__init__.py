"""The HTTP sink: calls an HTTP endpoint for each row or group of rows."""
