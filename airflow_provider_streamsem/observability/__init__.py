"""What Airflow's own tools are told of a task: statistics, spans, log fields, lineage, links."""
