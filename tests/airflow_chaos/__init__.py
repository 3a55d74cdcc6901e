"""Faults drawn by a seed under a real Airflow that runs a Kafka → S3 DAG without a pause; `python -m tests.airflow_chaos --help`."""
