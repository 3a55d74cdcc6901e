"""NATS JetStream streams as a source."""
