"""Chaos trials: random faults by a seed, in a real Airflow that runs a Kafka → S3 DAG continuously. `python -m tests.airflow_chaos --help`."""
