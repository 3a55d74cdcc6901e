"""Client for the queues of RabbitMQ and other AMQP 0-9-1 brokers."""
