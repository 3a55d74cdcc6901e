"""Reports a task to Airflow's tools: metrics, spans, log fields, lineage and links."""
