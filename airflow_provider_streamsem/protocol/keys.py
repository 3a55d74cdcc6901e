"""
Object keys, relative to the log's root (PROTOCOL.md, 2).

Keys with a version contain the *inverted* version, ``10^12 - 1 - version`` in 12 digits. So the newest version sorts first, and a listing of four keys finds
the head.
"""

from __future__ import annotations

import hashlib
import re

from airflow_provider_streamsem.errors import LogDamagedError

N = 10**12

PIPELINE = "pipeline.json"
DATASET_MARKER = "_streamsem.json"
LOG = "log/"
DISCOVERED = "discovered/"
ANNOUNCED = "announced/"
SOURCES = "sources/"

QUARANTINE = "quarantine/"
VACUUMED = "vacuumed/"
EXPIRED = "expired/"

_ENTRY = re.compile(r"log/([0-9]{8})/([0-9]{12})-([0-9]{1,13})\.([pcd])\.json")
_NEWEST_FIRST = re.compile(r".*/([0-9]{12})-([0-9]{1,12})\.json")
_POSITION = re.compile(r"[0-9]{1,12}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ATTEMPT = "[0-9a-f]{32}"
_OBJECTS = re.compile(
    "|".join(
        (
            r"pipeline\.json",
            r"(initial_offsets|specs|moved|spill)/D\.json",
            rf"sources/({_ATTEMPT}/)?[0-9a-f]{{16}}/([^/]+/)?(discovered/P|(files|known)/D\.json)",
            r"log/[0-9]{8}/[0-9]{12}-[0-9]{1,12}\.[pcd]\.json",
            r"(claims|effects)/N/[^/]+/[0-9]{8,}(-N)?\.json",
            r"attempts/N/A\.json",
            r"runs/D/(P|announced\.json)",
            r"(announced|vacuumed|expired)/P",
            r"quarantine/N/A/[0-9]{5,}\.jsonl",
            r"segments/N/N\.json",
            r"state/(operators/A|data/N/A)/.+",
            r"doctor/(A\.json|probe-A/.+)",
        )
    )
    .replace("D", _DIGEST.pattern)
    .replace("P", r"[0-9]{12}-[0-9]{1,12}\.json")
    .replace("N", r"[0-9]{1,12}")
    .replace("A", _ATTEMPT)
)
"""
Matches the keys of all objects of a log (PROTOCOL.md, 2). In the patterns, ``D`` stands for a sha256, ``P`` for a position after its inverse, ``N`` for a
number and ``A`` for the id of an attempt.
"""
_NEVER_WRITTEN = re.compile(r"[\\\x00-\x1f\x7f]")


def is_relative(key: str) -> bool:
    """Return whether a key is that of an object below its root: no path segment is empty, ``.`` or ``..``, and the key contains no NUL (R6)."""
    return "\0" not in key and not any(part in ("", ".", "..") for part in key.split("/"))


def is_written(key: str) -> bool:
    """Return whether a writer can have created the key: it is relative, and contains neither backslashes nor control characters (R6)."""
    return is_relative(key) and _NEVER_WRITTEN.search(key) is None


def is_digest(text: str) -> bool:
    """Whether a text is a sha256 in lower-case hexadecimal digits, which names a spec or a spilled field."""
    return _DIGEST.fullmatch(text) is not None


def is_attempt_id(text: str) -> bool:
    """Whether a text is the id of an attempt: a UUID in 32 lower-case hexadecimal digits."""
    return re.fullmatch(_ATTEMPT, text) is not None


def is_log_object(key: str) -> bool:
    """Whether a key is that of an object that this package writes to a log. Any other object below the log's root belongs to someone else."""
    return is_written(key) and _OBJECTS.fullmatch(key) is not None


def position(text: str) -> int | None:
    """Parse a version or another non-negative number from a path segment of a key. Returns ``None`` if the segment is not such a number."""
    return int(text) if _POSITION.fullmatch(text) else None


def _inv(n: int) -> str:
    if not 0 <= n < N:
        raise LogDamagedError("a version or another position is out of range", invariant="R6", position=n)
    return f"{N - 1 - n:012d}"


def plan(version: int) -> str:
    """Key of Plan(version)."""
    inv = _inv(version)
    return f"{LOG}{inv[:8]}/{inv}-{version}.p.json"


def outcome(version: int) -> str:
    """Key of Outcome(version). It sorts just before the key of the plan."""
    inv = _inv(version)
    return f"{LOG}{inv[:8]}/{inv}-{version}.c.json"


def receipts(version: int) -> str:
    """Key of Receipts(version). It sorts between the keys of the outcome and the plan."""
    inv = _inv(version)
    return f"{LOG}{inv[:8]}/{inv}-{version}.d.json"


def parse_entry(key: str) -> tuple[int, str] | None:
    """
    Parse a key under ``log/``.

    :returns: the version, and ``"p"`` for a plan, ``"c"`` for an outcome or ``"d"`` for receipts; ``None`` if no writer can have created the key
    """
    match = _ENTRY.fullmatch(key)
    if match is None:
        return None
    version = int(match[3])
    if version >= N or match[1] + match[2] != _inv(version)[:8] + _inv(version):
        return None
    return version, match[4]


def attempts(version: int) -> str:
    """Prefix of the staged manifests of a version."""
    return f"attempts/{version}/"


def attempt(version: int, attempt_id: str) -> str:
    """Key of the staged manifest of an attempt."""
    return f"{attempts(version)}{attempt_id}.json"


def run(run_key: str) -> str:
    """Prefix of the pointers of a run."""
    return f"runs/{hashlib.sha256(run_key.encode()).hexdigest()}/"


def pointer(run_key: str, j: int) -> str:
    """Key of the j-th pointer of a run."""
    return f"{run(run_key)}{_inv(j)}-{j}.json"


def initial_offsets(source: str) -> str:
    """Key of the initial offsets of a source. ``source`` is the sha256 of the source's arguments."""
    return f"initial_offsets/{source}.json"


def source(immutable_config: str, root: str = SOURCES) -> str:
    """
    Prefix of the discoveries of a source.

    :param immutable_config: sha256 of the source's immutable fields
    :param root: prefix of all sources; a moved log has its own
    """
    return f"{root}{immutable_config[:16]}/"


def moved(url: str) -> str:
    """Key of the record that the log was moved here from a URL."""
    return f"moved/{hashlib.sha256(url.encode()).hexdigest()}.json"


def announced(version: int) -> str:
    """Key of the announcement of a run whose last version is ``version``."""
    return f"{ANNOUNCED}{_inv(version)}-{version}.json"


def announced_by(run_key: str) -> str:
    """Key of the announcement of a run that planned no version. It sorts after the run's pointers."""
    return f"{run(run_key)}announced.json"


def discovered(i: int) -> str:
    """Key of the i-th discovery."""
    return f"{DISCOVERED}{_inv(i)}-{i}.json"


def page(sha256: str) -> str:
    """Key of a page of discovered files."""
    return f"files/{sha256}.json"


def known(sha256: str) -> str:
    """Key of a node of the tree of known files."""
    return f"known/{sha256}.json"


def parse_newest_first(key: str) -> int | None:
    """Return the number in the key of a run pointer, announcement, discovery or vacuum record; ``None`` if no writer can have created the key."""
    match = _NEWEST_FIRST.fullmatch(key)
    return int(match[2]) if match is not None and match[1] == _inv(int(match[2])) else None


def quarantine(version: int, attempt_id: str, part: int) -> str:
    """Key of the ``part``-th object with quarantined records of an attempt."""
    return f"{quarantined(version)}{attempt_id}/{part:05d}.jsonl"


def quarantined(version: int) -> str:
    """Prefix of the quarantined records of all attempts of a version."""
    return f"{QUARANTINE}{version}/"


def vacuumed(version: int) -> str:
    """Key of the record that vacuum has inspected all versions below ``version``."""
    return newest_first(VACUUMED, version)


def newest_first(prefix: str, version: int) -> str:
    """Key of a note about a version, so that a listing of the prefix begins with the newest version."""
    return f"{prefix}{_inv(version)}-{version}.json"


def claim(version: int, sink: str, chunk: int, round: int = 0) -> str:
    """Key of the claim on one round of a chunk of a version's effects."""
    return f"claims/{version}/{sink}/{_chunk(chunk, round)}.json"


def effects(version: int, sink: str, chunk: int, round: int = 0) -> str:
    """Key of the result of one round of a chunk of a version's effects."""
    return f"effects/{version}/{sink}/{_chunk(chunk, round)}.json"


def _chunk(chunk: int, round: int) -> str:
    return f"{chunk:08d}-{round}" if round else f"{chunk:08d}"


def segment(level: int, index: int) -> str:
    """Key of a segment."""
    return f"segments/{level}/{index}.json"


def is_spill(key: str) -> bool:
    """Whether a key is that of a spilled field."""
    return key.startswith("spill/")


def spill(sha256: str) -> str:
    """Key of a spilled field, which was too large for its entry."""
    return f"spill/{sha256}.json"


def spec(sha256: str) -> str:
    """Key of a pipeline spec."""
    return f"specs/{sha256}.json"


def doctor(report_id: str) -> str:
    """Key of a doctor report."""
    return f"doctor/{report_id}.json"


def data_prefix(version: int, attempt_id: str = "") -> str:
    """Prefix, within a dataset, of the files of one attempt of a version; without ``attempt_id``, of all its attempts."""
    return f"data/{version}/{attempt_id}/" if attempt_id else f"data/{version}/"


def attempt_of_data(key: str) -> tuple[int, str] | None:
    """
    Return the version and attempt id in a key ``data/<version>/<attempt id>/…`` of a dataset; ``None`` if no attempt wrote the key.

    Iceberg writers spread a table's files over directories of binary digits, such as ``data/1101/0001/…``. An attempt id is a UUID and never a short number.
    """
    parts = key.split("/", 3)
    version = position(parts[1]) if len(parts) == 4 and parts[0] == "data" else None
    if version is None or parts[2] in ("", ".", ".."):
        return None
    is_number = parts[2].isdecimal() and len(parts[2]) < 32
    return None if is_number else (version, parts[2])
