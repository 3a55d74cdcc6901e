"""Rules for names and types of columns, which sources and sinks share."""
