"""Prepare the directory of a pipeline once for several tests."""

from __future__ import annotations

import shutil
from pathlib import Path


class PreparedDirectory:
    """
    A directory that each test gets in its prepared state.

    A log contains the paths of its datasets, so it cannot be copied to another path. Each test gets the same path.

    :param root: the prepared directory. It is copied to a directory beside it
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._copy = root.with_name(f"{root.name}-copy")
        shutil.copytree(root, self._copy)

    def restore(self) -> Path:
        """Return the directory in its prepared state. Modification times are those of the prepared files."""
        shutil.rmtree(self._root)
        shutil.copytree(self._copy, self._root)
        return self._root
