"""Chaos trials: seeded random faults in a real Airflow that runs a Kafka → S3 DAG continuously. `python -m tests.airflow_chaos --help`."""
