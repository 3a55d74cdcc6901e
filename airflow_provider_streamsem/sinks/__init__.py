"""Sinks: where rows become visible. One file each; :mod:`contract` says what a sink must keep."""
