"""The Spark engine. :mod:`airflow_provider_streamsem.engine` defines the engine interface."""
