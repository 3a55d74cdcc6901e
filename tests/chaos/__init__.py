"""Chaos trials: random faults by a seed, injected into real servers while a subject drains a Kafka topic. `python -m tests.chaos --help`."""
