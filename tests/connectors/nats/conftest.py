"""The stream in memory as a fixture."""

from tests.connectors.nats.streams import orders

__all__ = ["orders"]
