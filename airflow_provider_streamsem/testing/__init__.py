"""
Tools for tests.

Users test their pipelines and DAGs with pytest fixtures (:mod:`plugin`), and with harnesses that kill a run at every step (:mod:`harness`,
:mod:`dag_harness`).

Developers of stores and engines also have stores that inject faults, a manual clock, an engine without Spark, an S3 server and conformance suites.
"""
