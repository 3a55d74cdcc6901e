"""Stores hold objects, each with bytes under a key, and create them atomically if absent. :mod:`contract` defines the interface of a store."""
