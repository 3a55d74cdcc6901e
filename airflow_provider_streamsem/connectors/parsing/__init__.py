"""Parses JSON, CSV and other text into typed columns on Spark. Each record is either parsed exactly or marked as bad."""
