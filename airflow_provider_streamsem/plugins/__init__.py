"""The plugin that adds the web view to Airflow's UI."""
