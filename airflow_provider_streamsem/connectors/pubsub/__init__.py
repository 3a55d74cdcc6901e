"""Google Cloud Pub/Sub as a queue of the queue source."""
