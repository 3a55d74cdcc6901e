"""Apache Kafka connector: a source that reads topics and a sink that writes to topics."""
