"""The Spark engine. It implements the interface in :mod:`airflow_provider_streamsem.engine`."""
