"""Stores: bytes under keys with atomic create-if-absent. Each module implements one store. :mod:`contract` defines the guarantees of a store."""
