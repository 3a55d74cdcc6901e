"""Runs a batch of a pipeline: :mod:`spec` defines the pipeline's spec, and :mod:`run` the order of the steps."""
