"""Faults drawn by a seed, injected into real parts while a subject drains a Kafka topic; `python -m tests.chaos --help`."""
