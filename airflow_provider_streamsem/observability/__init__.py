"""Listeners that report the run of a task to Airflow: metrics, spans, fields of log lines, lineage and links."""
