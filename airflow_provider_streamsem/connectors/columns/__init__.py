"""Names and types of columns, as sinks compare them."""
