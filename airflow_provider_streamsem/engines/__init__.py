"""Engines: what evaluates a batch. :mod:`contract` says what one must keep."""
