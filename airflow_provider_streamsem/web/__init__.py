"""The web view of pipelines: an HTTP API over the readers, and the page that uses it."""
