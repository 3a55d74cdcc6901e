"""Chaos trials: seeded random faults, injected into real servers while a subject drains a Kafka topic. `python -m tests.chaos --help`."""
