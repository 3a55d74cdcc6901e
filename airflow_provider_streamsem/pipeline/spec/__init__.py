"""The definition of a pipeline, and its log when it is opened."""
