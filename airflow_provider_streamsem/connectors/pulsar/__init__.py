"""The Pulsar source."""
