"""Tables of SQL databases as a sink."""
