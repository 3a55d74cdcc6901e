"""The queue source: reads message queues such as Amazon SQS and RabbitMQ."""
