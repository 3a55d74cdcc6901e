"""Versions that change or maintain a log, and commands of operators."""
