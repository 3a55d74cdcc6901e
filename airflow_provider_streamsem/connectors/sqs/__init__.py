"""Client for Amazon SQS queues."""
