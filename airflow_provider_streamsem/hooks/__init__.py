"""What Airflow keeps, as values: connections, pipelines of tasks, what an error does to a task."""
