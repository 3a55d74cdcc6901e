"""
Spark's metadata of ``transformWithState``: which schema files describe the values of a state.

Spark stores it under the number of the batch, with absolute paths, and keeps a file that exists already. But several attempts have the same number, and so do
versions after a rollback, and a log may be moved. So an outcome contains the metadata, and each attempt restores that of its base before it plans. This module
imports pyspark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_provider_streamsem.connectors import jvm
from airflow_provider_streamsem.errors import StageError
from airflow_provider_streamsem.state.settings import OperatorState, with_schema_files_in


class StateMetadata:
    """The metadata of the operators below ``root``, the path for Spark of the root directory of the state. ``batch`` is Spark's id of the batch."""

    def __init__(self, session: Any, root: str, batch: int) -> None:
        self._session, self._batch = session, batch
        self._root = self._path(root)
        self._files = self._root.getFileSystem(jvm.session_of(session).sessionState().newHadoopConf())

    def restore(self, base: OperatorState) -> None:
        """
        Make the metadata of the base the newest that Spark finds when it plans the batch.

        The metadata of the batch itself is that of another attempt, or of a version that was rolled back. It is deleted.
        """
        for number, operator in enumerate(base.operators):
            if operator.metadata:
                self._restore(number, operator.metadata)

    def _restore(self, number: int, metadata: str) -> None:
        expected = with_schema_files_in(metadata, self._files.makeQualified(self._operator(number)).toString())
        self._files.delete(self._file(number, self._batch), False)
        if self._read(number, self._batch - 1) != expected:
            stream = self._files.create(self._file(number, self._batch - 1), True)
            stream.write(bytearray(expected.encode()))
            stream.close()

    def of_batch(self, names: Mapping[int, str]) -> dict[int, str]:
        """
        Return operator → the metadata that Spark has written when it planned the batch, with the paths of schema files relative to the operator's directory.

        ``names`` has each operator that has metadata. Raises ``StageError`` if there is none, because a concurrent attempt of the batch has deleted it.
        """
        found = {number: self._read(number, self._batch) for number in names}
        if missing := [names[number] for number, text in found.items() if text is None]:
            raise StageError("another attempt has planned this batch at the same time", operators=missing)
        return {number: with_schema_files_in(text or "", "") for number, text in found.items()}

    def _read(self, number: int, batch: int) -> str | None:
        path = self._file(number, batch)
        if not self._files.exists(path):
            return None
        stream = self._files.open(path)
        try:
            return str(jvm.class_of(self._session, "org.apache.commons.io.IOUtils").toString(stream, "UTF-8"))
        finally:
            stream.close()

    def _operator(self, number: int) -> Any:
        return self._path(f"{self._root.toString()}/state/{number}")

    def _file(self, number: int, batch: int) -> Any:
        return self._path(f"{self._operator(number).toString()}/_metadata/v2/{batch}")

    def _path(self, text: str) -> Any:
        return jvm.class_of(self._session, "org.apache.hadoop.fs.Path")(text)
