"""The rate source: generated records for demonstrations and tests."""
