"""
For tests of pipelines and DAGs: fixtures of pytest (:mod:`plugin`), a harness and a crash matrix for one's own (:mod:`harness`, :mod:`dag_harness`).

For tests of what lies below: stores that fail on demand, a clock by hand, an engine without Spark, an S3 server, conformance suites.
"""
