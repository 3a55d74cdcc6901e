"""Finds the exception that the user's code raised, in the driver or in a Python worker: its type, and the user's file and line."""

from __future__ import annotations

import builtins
import re
import sysconfig
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_OWN = str(Path(__file__).parents[1])
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_INSTALLED = ("/site-packages/", "/dist-packages/")
_SPARK = ("/pyspark/", "/pyspark.zip/", "/py4j/", "/py4j-")
_FRAME = re.compile(r'  File "([^"\n]+)", line (\d+), in \S')
_EXCEPTION = re.compile(r"([A-Za-z_][\w.]{0,150})(?::|$)")
_CALL_SITE = re.compile(r"^(.+):(\d+)$")
_CONDITION = re.compile(r"^[\w.]+: \[([A-Z][A-Z0-9_.]+)\]")
_MISSING_MODULE = re.compile(r"^ModuleNotFoundError: No module named '([\w.]+)'")
_UNDEFINED = re.compile(r"^NameError: name '(\w+)' is not defined")
_CORRECTABLE = (
    ArithmeticError, AssertionError, AttributeError, FileNotFoundError, ImportError, IsADirectoryError, LookupError, NameError, NotADirectoryError,
    NotImplementedError, PermissionError, RecursionError, SyntaxError, TypeError, ValueError,
)  # fmt: skip
"""The exceptions after which a retry of the same code on the same records cannot succeed."""
_CORRECTABLE_ELSEWHERE = ("PicklingError", "PickleException", "StopIteration", "SystemExit")


@dataclass(frozen=True, slots=True)
class Raised:
    """
    An exception of the user's code. It holds no message, because a message may contain values of records.

    :param kind: the type of the exception, such as ``ValueError``
    :param at: the user's file and line, ``/dags/orders.py:12``; ``""`` if the exception has none
    :param name: the module or the variable that does not exist; ``""`` for other exceptions
    :param condition: PySpark's condition; ``""`` if the exception has none
    :param is_correctable: whether only a change of the code or of the records can help, so that a retry cannot
    """

    kind: str
    at: str
    name: str
    condition: str
    is_correctable: bool

    @property
    def fields(self) -> dict[str, object]:
        """Return the facts that are known, as fields of an error."""
        facts = {"at": self.at, "name": self.name, "condition": self.condition}
        return {name: value for name, value in facts.items() if value}


def in_driver(error: BaseException) -> Raised | None:
    """Return the exception, if the transform raised it in this process; ``None`` if it comes from elsewhere."""
    frames = traceback.extract_tb(error.__traceback__)
    called = next(
        (n for n, frame in enumerate(frames) if frame.name == "_transformed" and _OWN in frame.filename), None
    )
    if called is None:
        return None
    condition = getattr(error, "getCondition", lambda: "")() or ""
    parameters = (getattr(error, "getMessageParameters", lambda: None)() or {}) if condition else {}
    name = (error.name or "") if isinstance(error, (NameError, ImportError)) else parameters.get("attr_name", "")
    at = _line([(frame.filename, frame.lineno or 0) for frame in frames[called + 1 :]])
    return Raised(type(error).__name__, at, name, condition, is_correctable(type(error).__mro__))


def in_worker(messages: Iterable[str]) -> Raised | None:
    """
    Return the exception that a Python function of the user raised in a worker; ``None`` if no message contains one. Of a chain, return the first exception.

    ``messages``: those of the exception and of its causes in the JVM.
    """
    for message in messages:
        _, found, text = message.partition("Traceback (most recent call last):\n")
        if not found:
            continue
        frames: list[tuple[str, int]] = []
        for line in text.split("\n"):
            if frame := _FRAME.match(line):
                frames.append((frame[1], int(frame[2])))
            elif line and not line.startswith(" ") and (kind := _EXCEPTION.match(line)):
                return _of_worker(kind[1], line, frames)
    return None


def _of_worker(kind: str, line: str, frames: Sequence[tuple[str, int]]) -> Raised:
    at = _line(frames)
    condition = _CONDITION.match(line)
    name = _MISSING_MODULE.match(line) or _UNDEFINED.match(line)
    short = kind.rpartition(".")[2]
    type_of_name = getattr(builtins, kind, None)
    mro = type_of_name.__mro__ if isinstance(type_of_name, type) else ()
    correctable = is_correctable(mro) or short in _CORRECTABLE_ELSEWHERE or condition is not None
    return Raised(short, at, name[1] if name else "", condition[1] if condition else "", correctable)


def line_of_query(error: BaseException) -> str:
    """Return the user's file and line that created the expression which an error of Spark names; ``""`` if it names none."""
    try:
        sites = [context.callSite() for context in error.getQueryContext() if "DataFrame" in str(context.contextType())]  # type: ignore[attr-defined]
    except Exception:
        return ""
    found = next((match for site in sites if (match := _CALL_SITE.search(site))), None)
    return _line([(found[1], int(found[2]))]) if found else ""


def is_correctable(mro: Sequence[type]) -> bool:
    """Return whether an exception of a class with this method resolution order occurs again if the same code reads the same records."""
    return any(cls in _CORRECTABLE or cls.__name__ in _CORRECTABLE_ELSEWHERE for cls in mro)


def _line(frames: Sequence[tuple[str, int]]) -> str:
    """Return the innermost line of the user's own files; if there are none, that of a library that is not Spark's; ``""`` if there is none."""
    other = [frame for frame in frames if not _is_internal(frame[0])]
    own = [frame for frame in other if not any(part in frame[0] for part in _INSTALLED)]
    chosen = own[-1:] or other[-1:]
    return f"{chosen[0][0]}:{chosen[0][1]}" if chosen else ""


def _is_internal(file: str) -> bool:
    in_library = file.startswith(_STANDARD_LIBRARY) and not any(part in file for part in _INSTALLED)
    return file.startswith((_OWN, "<frozen")) or in_library or any(part in file for part in _SPARK)
