"""The Airflow hook, and helpers that access Airflow: connections, configuration, task instances and Airflow's exceptions."""
