"""Scopes: the concurrent processes, their sinks outside the log, and how often each fault may occur."""

from __future__ import annotations

from dataclasses import dataclass

from tests.model.state import Budget

SINGLE, DRAIN, REPROCESS_RUN, ROLLBACK_RUN, ALTER_RUN, COMPACTION, EXPIRY, INTERVAL_RUN = (
    "single",
    "drain",
    "reprocess",
    "rollback",
    "alter",
    "compaction",
    "expiry",
    "interval",
)
TXN, ALO, AMO = "transactional", "at-least-once", "at-most-once"
INTERVAL_LENGTH = 3  # offsets; so the late records of the source, one or two, move a boundary within an interval
DRAIN_LENGTH = 5  # three batches of two offsets each, the last truncated by the target


@dataclass(frozen=True, slots=True)
class Actor:
    """
    A process.

    :param run: the run of the process
    :param kind: the kind of the run
    :param size: offsets per batch; for an interval, how many late records the source has before each time when the process asks
    :param of: the index of the commit that a reprocessing run reprocesses, or to which a rollback returns; how many versions before the head an expiry keeps;
        the number of the interval that is read
    :param config: the immutable fields of its spec: 0 before the alter, 1 after it
    :param after: the process starts only after this run has completed; -1: at any time
    """

    name: str
    run: int
    kind: str = SINGLE
    size: int = 1
    of: int = 0
    config: int = 0
    after: int = -1


@dataclass(frozen=True, slots=True)
class Configuration:
    """
    A scope that is explored exhaustively.

    :param actors: processes. Two of the same run are a retry and a zombie
    :param budget: how often each fault, and each action of an operator, may occur
    :param sinks: sinks outside the log, in the order of publishing
    :param stale: whether a listing may miss any of the newest versions and any staged manifest
    :param poison: whether the transactional sink always refuses version 0
    :param keep: of how many of the newest versions the operators' state is kept
    :param tries: how many aborted versions the log may have while an alter still aborts another one
    :param states: the expected number of states. The test fails if the model explores fewer
    """

    actors: tuple[Actor, ...]
    budget: Budget
    sinks: tuple[str, ...] = ()
    stale: bool = False
    poison: bool = False
    keep: int = 0
    tries: int = 1
    states: int = 0


A = Actor("A", 0)
B = Actor("B", 1, size=2)
C = Actor("C", 1, size=DRAIN_LENGTH)
D = Actor("D", 0, DRAIN, size=2)
R = Actor("R", 2, REPROCESS_RUN)
S = Actor("S", 3, REPROCESS_RUN)
T = Actor("T", 4, REPROCESS_RUN, of=1)
U = Actor("U", 5, ROLLBACK_RUN)
V = Actor("V", 6, ROLLBACK_RUN, of=1)
X = Actor("X", 7, ALTER_RUN, config=1)
N = Actor("N", 8, config=1)
M = Actor("M", 9, REPROCESS_RUN, config=1)
W = Actor("W", 10, COMPACTION)
Y = Actor("Y", 11, COMPACTION)
E = Actor("E", 12, EXPIRY)
F = Actor("F", 13, EXPIRY, of=1, after=10)
G = Actor("G", 10, COMPACTION, after=0)
H = Actor("H", 12, EXPIRY, after=10)
Q = Actor("Q", 14, REPROCESS_RUN, after=10)
J = Actor("J", 15, ROLLBACK_RUN, after=10)
K = Actor("K", 11, COMPACTION, after=10)
L = Actor("L", 16, after=10)
RL = Actor("RL", 17, REPROCESS_RUN, of=3, after=16)
P = Actor("P", 18, ROLLBACK_RUN, of=2, after=16)
EO = Actor("EO", 12, EXPIRY, of=2, after=11)
EP = Actor("EP", 12, EXPIRY, after=18)
FL = Actor("FL", 13, EXPIRY, of=1, after=16)
KF = Actor("KF", 11, COMPACTION, after=13)


I0 = Actor("I0", 19, INTERVAL_RUN, size=0)
I1 = Actor("I1", 20, INTERVAL_RUN, of=1)
I2 = Actor("I2", 21, INTERVAL_RUN, size=2, of=2)
I1_LATER = Actor("I1'", 20, INTERVAL_RUN, size=2, of=1)


def _scope(
    actors: tuple[Actor, ...], sinks: tuple[str, ...] = (), *, states: int, **others: int | bool
) -> Configuration:
    """A configuration. ``others`` has fields of :class:`Budget`, and ``stale``, ``poison``, ``keep`` and ``tries``."""
    stale, poison = bool(others.pop("stale", False)), bool(others.pop("poison", False))
    options = {name: others.pop(name) for name in ("keep", "tries") if name in others}
    return Configuration(actors, Budget(**others), sinks, stale=stale, poison=poison, states=states, **options)


SMALL: dict[str, Configuration] = {
    "retry": _scope((A, A), unknown=1, crashes=1, aborts=1, states=6_000),
    "two_aborts": _scope((A, A), crashes=1, aborts=2, clears=1, states=6_858),
    "vacuum": _scope((A, A), unknown=1, aborts=1, vacuums=1, states=2_194),
    "help": _scope((A, B), unknown=1, crashes=1, states=8_127),
    "clear": _scope((A, B), aborts=1, clears=1, states=3_043),
    "stale": _scope((A, B), stale=True, crashes=1, clears=1, states=7_698),
    "stale_retry": _scope((A, A), stale=True, unknown=1, crashes=1, states=2_249),
    "drain": _scope((D, D), unknown=1, aborts=1, states=8_093),
    "drain_clear": _scope((D,), unknown=1, crashes=2, aborts=2, clears=1, states=18_393),
    "drain_concurrent": _scope((D, B), crashes=1, clears=1, states=14_672),
    "drain_overtaken": _scope((D, C), aborts=1, states=6_893),
    "reprocess": _scope((A, R), unknown=1, crashes=1, aborts=1, states=14_800),
    "reprocess_retry": _scope((A, R, R), crashes=1, states=14_097),
    "reprocess_chain": _scope((A, R, S), states=2_958),
    "reprocess_of_reprocess": _scope((A, R, T), states=1_919),
    "reprocess_abort": _scope((A, R, S), aborts=1, states=18_510),
    "reprocess_of_drain": _scope((D, R), aborts=1, states=5_688),
    "reprocess_vacuum": _scope((A, R), aborts=1, vacuums=1, states=1_506),
    "rollback": _scope((A, B, U), states=3_980),
    "rollback_retry": _scope((D, U), unknown=1, states=1_803),
    "rollback_abort": _scope((D, U), aborts=1, clears=1, states=6_842),
    "rollback_vacuum": _scope((D, U), vacuums=1, states=3_383),
    "rollback_state": _scope((D, U), keep=1, state_vacuums=1, states=792),
    "rollback_txn": _scope((D, U), (TXN,), states=777),
    "rollback_txn_skip": _scope((D, U), (TXN,), skips=1, states=3_285),
    "alter": _scope((A, N, X), states=1_206),
    "alter_retry": _scope((A, X, X), crashes=1, states=7_601),
    "alter_unknown": _scope((D, X), unknown=1, states=3_094),
    "alter_abort": _scope((A, N, X), aborts=1, states=8_199),
    "alter_state": _scope((A, N, X), keep=1, state_vacuums=1, states=1_286),
    "alter_txn": _scope((A, N, X), (TXN,), states=2_038),
    "rewrite": _scope((A, B, W), states=1_032),
    "rewrite_retry": _scope((D, W), crashes=1, states=2_067),
    "rewrite_abort": _scope((D, W), unknown=1, aborts=1, states=4_457),
    "rewrite_after_abort": _scope((D, W), aborts=1, tries=2, states=2_355),
    "rewrite_reprocess": _scope((D, W, R), states=15_026),
    "rewrite_rollback": _scope((D, W, V), states=7_453),
    "rewrite_txn": _scope((D, W), (TXN,), states=298),
    "expire": _scope((D, W, E), vacuums=1, states=6_554),
    "expire_retry": _scope((A, E, E), crashes=1, aborts=1, states=2_234),
    "expire_reprocess": _scope((D, G, H, Q), vacuums=1, states=152),
    "expire_rollback": _scope((D, G, H, J), vacuums=1, states=178),
    "expire_rewrites": _scope((D, G, L, K, EO, RL), vacuums=1, states=1_151),
    "expire_kept": _scope((D, G, L, P, EP), vacuums=1, states=53),
    "expire_twice": _scope((D, G, F, H), states=124),
    "expire_bound": _scope((D, G, L, FL, KF, RL), vacuums=1, states=353),
    "expire_abort": _scope((D, G, H), aborts=1, vacuums=1, states=226),
    "interval": _scope((I0, I1, I2), states=10_257),
    "interval_retry": _scope((I1, I1_LATER), crashes=1, aborts=1, states=8_346),
    "interval_unknown": _scope((I0, I1), unknown=1, aborts=1, states=5_475),
    "interval_reprocess": _scope((I0, I1, R), states=6_350),
    "interval_rollback": _scope((I0, I1, U), clears=1, states=9_694),
    "interval_txn": _scope((I0, I1), (TXN,), unknown=1, states=1_501),
    "txn": _scope((A, B), (TXN,), unknown=1, states=1_501),
    "txn_retry": _scope((A, A), (TXN,), unknown=1, crashes=1, aborts=1, states=7_386),
    "skip": _scope((A, A), (TXN,), unknown=1, crashes=1, clears=1, skips=1, states=3_366),
    "poison": _scope((A, A), (TXN,), crashes=1, skips=1, poison=True, states=845),
    "amo": _scope((A, B), (AMO,), crashes=1, skips=1, states=14_782),
    "amo_retry": _scope((A, A), (AMO,), unknown=1, crashes=1, skips=1, states=4_852),
    "alo": _scope((A, B), (ALO,), crashes=1, clears=1, states=5_652),
    "txn_amo": _scope((A, A), (TXN, AMO), unknown=1, crashes=1, states=3_066),
    "amo_txn": _scope((A, A), (AMO, TXN), unknown=1, crashes=1, states=3_281),
    "reprocess_txn": _scope((A, R), (TXN,), unknown=1, crashes=1, states=5_048),
    "reprocess_skip": _scope((A, R, S), (TXN,), skips=1, states=18_318),
    "drain_txn": _scope((D, D), (TXN,), aborts=1, states=3_317),
}

EXHAUSTIVE: dict[str, Configuration] = {
    "retry_twice": _scope((A, A), unknown=2, crashes=2, aborts=2, clears=1, states=125_091),
    "three_twins": _scope((A, A, A), unknown=1, crashes=1, aborts=1, states=62_057),
    "twins_help": _scope((A, A, B), crashes=1, aborts=1, states=237_323),
    "vacuum_wide": _scope((A, A), unknown=1, crashes=1, aborts=1, vacuums=1, clears=1, states=28_521),
    "help_vacuum": _scope((A, B), unknown=1, crashes=1, aborts=1, vacuums=1, states=279_361),
    "help_twice": _scope((A, B), unknown=2, crashes=2, aborts=1, states=350_997),
    "clear_wide": _scope((A, B), unknown=1, crashes=1, aborts=1, clears=2, states=111_299),
    "stale_wide": _scope((A, B), stale=True, unknown=1, crashes=1, aborts=1, clears=1, states=129_769),
    "stale_twins": _scope((A, A), stale=True, unknown=2, crashes=1, aborts=1, states=13_808),
    "drain_wide": _scope((D, D), unknown=1, crashes=1, aborts=1, clears=1, states=51_110),
    "drain_other": _scope((D, B), unknown=1, crashes=1, aborts=1, states=210_004),
    "drain_twins_other": _scope((D, D, B), crashes=1, aborts=1, states=2_011_082),
    "drain_stale": _scope((D, D), stale=True, crashes=1, aborts=1, states=31_211),
    "drain_reprocess_chain": _scope((D, R, T), aborts=1, states=302_765),
    "drain_reprocess": _scope((D, R), unknown=1, crashes=1, aborts=1, states=163_581),
    "reprocess_wide": _scope((A, R), unknown=2, crashes=1, aborts=2, clears=1, states=143_971),
    "reprocess_vacuum_wide": _scope((A, R), crashes=1, aborts=1, vacuums=1, states=25_799),
    "reprocess_chain_wide": _scope((A, R, S), unknown=1, crashes=1, states=146_927),
    "reprocess_chain_abort": _scope((A, R, S), unknown=1, crashes=1, aborts=1, states=821_859),
    "reprocess_two_chains": _scope((A, B, R, T), aborts=1, states=1_457_538),
    "reprocess_of_reprocess_wide": _scope((A, R, T), unknown=1, crashes=1, states=98_416),
    "reprocess_concurrent": _scope((A, R, B), aborts=1, states=48_430),
    "reprocess_stale": _scope((A, R), stale=True, unknown=1, crashes=1, aborts=1, clears=1, states=45_164),
    "rollback_retry_wide": _scope((D, U), unknown=1, crashes=1, states=13_858),
    "rollback_twice": _scope((D, U, V), states=11_060),
    "rollback_twice_wide": _scope((D, U, V), unknown=1, aborts=1, states=369_444),
    "rollback_reprocess": _scope((D, R, U), states=22_631),
    "rollback_concurrent_reprocess": _scope((A, B, R, U), states=128_830),
    "rollback_vacuum_wide": _scope((D, U), vacuums=1, aborts=1, states=35_931),
    "rollback_state_wide": _scope((D, U, V), keep=1, state_vacuums=2, states=32_459),
    "rollback_state_retry": _scope((D, U), keep=1, state_vacuums=2, crashes=1, aborts=1, states=78_791),
    "rollback_state_two_kept": _scope((D, U, V), keep=2, state_vacuums=1, states=14_453),
    "rollback_twins": _scope((A, B, U, U), states=39_223),
    "rollback_txn_retry": _scope((D, U), (TXN,), unknown=1, crashes=1, states=19_967),
    "rollback_txn_twins": _scope((A, B, U, U), (TXN,), states=77_375),
    "rollback_txn_reprocess": _scope((D, R, U), (TXN,), states=45_759),
    "rollback_txn_twice": _scope((D, U, V), (TXN,), skips=1, states=108_901),
    "interval_retry_wide": _scope((I0, I1, I1_LATER), crashes=1, states=90_715),
    "interval_wide": _scope((I0, I1, I2), unknown=1, aborts=1, states=400_530),
    "interval_rollback_wide": _scope((I0, I1, I2, U), states=225_741),
    "alter_wide": _scope((A, N, X), unknown=1, crashes=1, aborts=1, states=206_594),
    "alter_drain": _scope((D, N, X), crashes=1, states=74_827),
    "alter_reprocess": _scope((A, R, M, X), states=24_788),
    "alter_rollback": _scope((A, B, U, X), states=225_680),
    "alter_state_wide": _scope((D, N, X), keep=1, state_vacuums=2, states=30_587),
    "alter_txn_wide": _scope((A, N, X), (TXN,), crashes=1, skips=1, states=35_029),
    "rewrite_wide": _scope((A, B, W), unknown=1, crashes=1, aborts=1, states=228_956),
    "rewrite_twice": _scope((D, W, Y), unknown=1, states=23_487),
    "rewrite_alter": _scope((A, B, W, X), states=74_228),
    "expire_unknown": _scope((D, G, E), vacuums=1, unknown=1, crashes=1, states=20_985),
    "expire_retry_wide": _scope((A, B, E), crashes=1, aborts=1, states=107_262),
    "expire_rollback_vacuum": _scope((D, U, E), vacuums=1, states=65_297),
    "expire_reprocess_vacuum": _scope((D, R, E), vacuums=1, states=108_001),
    "expire_rewrites_reprocess": _scope((D, G, L, K, F, RL), vacuums=1, states=25_404),
    "expire_rewrites_twice": _scope((D, G, L, K, F, H), vacuums=1, states=210_667),
    "expire_rewrite_reprocess": _scope((D, G, R, E), vacuums=1, states=345_233),
    "expire_rewrite_rollback": _scope((D, G, U, E), vacuums=1, states=243_587),
    "expire_rewrite_kept": _scope((D, G, V, E), vacuums=1, states=238_385),
    "expire_alter": _scope((D, G, X, H), vacuums=1, states=2_293),
    "txn_wide": _scope((A, B), (TXN,), unknown=2, crashes=1, aborts=1, skips=1, states=213_113),
    "txn_twins": _scope((A, A), (TXN,), unknown=2, crashes=2, aborts=1, skips=1, clears=1, states=62_793),
    "txn_stale": _scope((A, B), (TXN,), stale=True, unknown=1, crashes=1, aborts=1, states=87_413),
    "amo_wide": _scope((A, B), (AMO,), unknown=2, crashes=2, skips=1, states=366_445),
    "amo_stale": _scope((A, B), (AMO,), stale=True, unknown=1, crashes=1, states=26_749),
    "amo_twins": _scope((A, A), (AMO,), unknown=2, crashes=2, aborts=1, states=59_541),
    "alo_wide": _scope((A, B), (ALO,), unknown=1, crashes=2, aborts=1, clears=1, states=405_208),
    "txn_amo_wide": _scope((A, A), (TXN, AMO), unknown=2, crashes=2, skips=1, states=32_096),
    "amo_txn_wide": _scope((A, A), (AMO, TXN), unknown=2, crashes=2, skips=1, states=35_333),
    "txn_alo": _scope((A, B), (TXN, ALO), unknown=1, crashes=1, states=11_707),
    "reprocess_txn_wide": _scope((A, R), (TXN,), unknown=2, crashes=1, aborts=1, skips=1, states=80_644),
    "reprocess_chain_txn": _scope((A, R, S), (TXN,), crashes=1, aborts=1, skips=1, states=1_221_608),
    "drain_txn_wide": _scope((D, D), (TXN,), unknown=1, crashes=1, aborts=1, states=64_480),
    "drain_txn_other": _scope((D, B), (TXN,), crashes=1, aborts=1, states=96_123),
}

CONFIGURATIONS = {**SMALL, **EXHAUSTIVE}
