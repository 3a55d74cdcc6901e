"""Runs: plan, stage, commit and publish batches and reprocessing runs."""
