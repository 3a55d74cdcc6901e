"""The law of the commit log, sans-IO: no clock, no randomness, no network, no threads. Mirrors ``docs/PROTOCOL.md``."""
