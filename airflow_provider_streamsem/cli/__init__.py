"""The ``streamsem`` command. It does not import Airflow, and it imports pyspark only to run a batch."""
