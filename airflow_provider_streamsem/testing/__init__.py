"""
Tools for tests.

For tests of pipelines and DAGs: pytest fixtures (:mod:`plugin`), and harnesses with a crash matrix for user pipelines and DAGs (:mod:`harness`,
:mod:`dag_harness`).

For tests of lower layers: stores that fail on demand, a manual clock, an engine without Spark, an S3 server and conformance suites.
"""
