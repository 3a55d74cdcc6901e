"""Stores: bytes under keys with create-if-absent. One file each; :mod:`contract` says what a store must keep."""
