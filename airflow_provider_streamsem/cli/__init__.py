"""The ``streamsem`` command. Imports neither Airflow nor, unless it runs a batch, pyspark."""
