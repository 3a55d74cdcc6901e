"""Ready-made transforms that keep state across batches: aggregations over monoids, and a state object for each key."""
