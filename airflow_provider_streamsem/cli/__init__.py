"""The ``streamsem`` command. It does not import Airflow. It imports pyspark only for commands that use Spark."""
