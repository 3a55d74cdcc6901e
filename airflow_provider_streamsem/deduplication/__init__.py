"""Decides which records of a batch pass the deduplication, and stores their ids. Only engines import this package, because it imports numpy and pyarrow."""
