"""Pipelines and their runs: :mod:`spec` defines a pipeline, and :mod:`run` performs the steps of a run in order."""
