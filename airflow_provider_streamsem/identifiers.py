"""Quotes names for Spark SQL."""

from __future__ import annotations


def quoted(name: str) -> str:
    """Quote the name of a column or field, which may contain any character."""
    return "`" + name.replace("`", "``") + "`"
