"""The commit log protocol without I/O: no clock, no randomness, no network and no threads. Implements ``docs/PROTOCOL.md``."""
