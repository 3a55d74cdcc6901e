"""For tests of pipelines, stores and the log: stores that fail on demand, a clock by hand, an engine without Spark, an S3 server, conformance suites."""
