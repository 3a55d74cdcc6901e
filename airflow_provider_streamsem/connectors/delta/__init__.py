"""Delta tables as source, sink and lookup."""
