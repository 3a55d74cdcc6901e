"""Functions that read a log: visible files and rows, waiting records, lag, sensor conditions and verification."""
