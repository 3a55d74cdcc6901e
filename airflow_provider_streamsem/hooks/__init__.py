"""Access to Airflow's state: connections, configuration, run keys, pipelines of tasks, and how errors end a task."""
