"""The Kinesis source."""
