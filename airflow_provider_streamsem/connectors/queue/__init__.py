"""Source that reads message queues such as Amazon SQS and RabbitMQ."""
