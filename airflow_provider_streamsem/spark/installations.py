"""Recognizes failures of Spark that come from its installation (Java, jars, versions), and from lost processes and too little memory."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from airflow_provider_streamsem.errors import InvalidError
from airflow_provider_streamsem.spark import java

_MISSING_CLASS = re.compile(
    r"\b(?:java\.lang\.(?:ClassNotFoundException|NoClassDefFoundError)): (?:Class |Could not initialize class )?([\w.$/]+)"
)
_OTHER_BUILD = re.compile(
    r"\bjava\.lang\.(NoSuchMethodError|NoSuchFieldError|AbstractMethodError|IncompatibleClassChangeError|NoSuchMethodException)\b"
    r"|\bjava\.io\.(InvalidClassException)\b"
)
_NO_FILE_SYSTEM = re.compile(r"\bUnsupportedFileSystemException: No FileSystem for scheme \"([\w.+-]+)\"")
_REFUSED_SETTING = re.compile(r"\b(Spark)?IllegalArgumentException\b|Could not parse Master URL")
_JARS = "add the jar to spark.jars or spark.jars.packages, in the build for this version of Spark and Scala; then run again."

_LOST: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (
        re.compile(
            r"java\.lang\.OutOfMemoryError|SparkOutOfMemoryError|Container killed by YARN for exceeding|OOMKilled"
        ),
        "a process of Spark ran out of memory",
        "run again. If it fails again, set a higher spark.driver.memory or spark.executor.memory, or read fewer records in a batch with `limits`.",
    ),
    (
        re.compile(r"Python worker exited unexpectedly"),
        "a Python worker of Spark ended, for example because memory was short",
        "run again. If it fails again, set a higher spark.executor.memoryOverhead or container limit, or read fewer records in a batch with `limits`.",
    ),
    (
        re.compile(r"ExecutorLostFailure|Executor heartbeat timed out|Remote RPC client disassociated"),
        "an executor of Spark was lost",
        "run again. If it fails again, look for an out-of-memory kill of the executor, and set a higher spark.executor.memory.",
    ),
    (
        re.compile(r"stopped SparkContext|SparkContext was shut down"),
        "the Spark context was stopped while the batch was staged",
        "run again. If it fails again, remove `stop()` from the transform, or look for the end of the driver's JVM.",
    ),
)
_JVM_ENDED = ("Py4JNetworkError", "ConnectionRefusedError", "ConnectionResetError", "BrokenPipeError")


def mismatch(texts: Sequence[str], version: int) -> InvalidError | None:
    """
    Return the error for a Java, a jar or a Spark that does not fit the others; ``None`` if no message of the exception and its causes in the JVM shows one.
    """
    for text in texts:
        if "getSubject is not supported" in text or "java.lang.UnsupportedClassVersionError" in text:
            return java.unsupported(
                "the installed Java does not fit the installed Spark; nothing became visible", batch=version
            )
        if "bigger than spark.driver.maxResultSize" in text:
            summary = "the driver collected more rows than spark.driver.maxResultSize allows; nothing became visible"
            return InvalidError(summary, version=version).advising(
                "remove `collect` or `toPandas` from the transform, or set a higher spark.driver.maxResultSize; then run again. With `dedup`, "
                "the driver gets 28 bytes for each record of a batch: 1 GiB is enough for 38 million."
            )
        if "java.lang.StackOverflowError" in text:
            summary = "the query plan of the transform is too deep for the JVM's stack; nothing became visible"
            return InvalidError(summary, version=version).advising(
                "replace calls of withColumn in a loop by one `withColumns`, or set -Xss16m in spark.driver.extraJavaOptions; then run again."
            )
        if found := _NO_FILE_SYSTEM.search(text):
            summary = "Spark has no file system for a scheme of a URL; nothing became visible"
            return InvalidError(summary, version=version, scheme=found[1]).advising(_JARS)
        if "java.sql.SQLException: No suitable driver" in text:
            summary = "Spark lacks the JDBC driver of a URL; nothing became visible"
            return InvalidError(summary, version=version).advising(_JARS)
        if found := _MISSING_CLASS.search(text):
            summary = "Spark lacks a class that the batch needs; nothing became visible"
            return InvalidError(summary, version=version, missing=found[1].rstrip(".")).advising(_JARS)
        if found := _OTHER_BUILD.search(text):
            summary = "jars of Spark, or the versions of Spark on driver and executors, do not fit each other; nothing became visible"
            return InvalidError(summary, version=version, error=found[1] or found[2]).advising(
                "install one version of Spark on driver and executors, and jars that are built for it; then run again."
            )
    return None


def refused_setting(
    texts: Sequence[str], conditions: Sequence[tuple[str, Mapping[str, str]]], master: str
) -> InvalidError | None:
    """Return the error for a master, a setting or a class of a setting that Spark refuses while it starts; ``None`` for other failures."""
    if any("getSubject is not supported" in text for text in texts):
        return java.unsupported("the installed Java does not fit the installed Spark; nothing was staged")
    condition, parameters = next(iter(conditions), ("", {}))
    missing = next((found[1] for text in texts if (found := _MISSING_CLASS.search(text))), None)
    if missing is None and not any(map(_REFUSED_SETTING.search, texts)):
        return None
    setting = parameters.get("confName") or parameters.get("config")
    facts = {"condition": condition, "setting": setting, "missing_class": missing}
    summary = "Spark refuses its master or one of its settings; nothing was staged"
    return InvalidError(summary, master=master, **{name: value for name, value in facts.items() if value}).advising(
        "correct the Spark connection or `spark_conf` (--spark-conf): the exception before this message names the value. Then run again."
    )


def lost(error: Exception, texts: Sequence[str]) -> tuple[str, str, dict[str, str]] | None:
    """Return what happened, what to do, and facts, if a process of Spark was lost or memory was short; ``None`` otherwise."""
    for pattern, summary, advice in _LOST:
        if any(map(pattern.search, texts)):
            return summary, advice, {}
    if type(error).__name__ in _JVM_ENDED or (
        type(error).__name__ == "Py4JError" and not hasattr(error, "java_exception")
    ):
        summary = "the JVM of Spark ended while the batch was staged"
        return (
            summary,
            "run again. If it fails again, look for an out-of-memory kill, and give the process more memory.",
            {},
        )
    return None
