"""The claims and results of the calls that publish a version, as the commit log stores them (PROTOCOL.md, P4)."""

from __future__ import annotations

from airflow_provider_streamsem.connectors.sink import SinkCommit
from airflow_provider_streamsem.protocol.entries import Claim, Effects


class EffectLedger:
    """
    The claims and results of a version's effects on one sink, as one publisher reads and records them. An *effect* is a call that cannot be undone.

    A chunk is a consecutive set of records in the order of the staged files. Chunks are the same for every publisher. A publisher performs a chunk in
    one round, or in several rounds if calls were interrupted. Each round begins with the first record that the previous round has not performed.
    """

    def __init__(self, batch: SinkCommit) -> None:
        assert batch.log is not None
        self._batch, self._log, self.clock = batch, batch.log, batch.log.clock
        self._nonce = self.clock.new_id()  # identifies this publisher in its claims (P4)

    def claim(self, chunk: int, round: int) -> bool:
        """Claim one round of a chunk. Returns whether this publisher holds the claim. Only the publisher that holds it may perform the effects (I17)."""
        batch = self._batch
        proposed = Claim(version=batch.version, sink=batch.sink, chunk=chunk, round=round, nonce=self._nonce)
        return self._log.claim(proposed)

    def known(self, chunk: int, round: int) -> Effects | None:
        """``None`` if no publisher has recorded the result of the round."""
        return self._log.effects(self._batch.version, self._batch.sink, chunk, round)

    def record(
        self, chunk: int, round: int, *, done: int, refused: int = 0, unknown: int = 0, skipped: int = 0, left: int = 0
    ) -> Effects:
        """
        Record the result of one round of a chunk, after its last effect. All counts are records. Returns the stored result, perhaps of another publisher.

        :param refused: effects that the other system will never perform
        :param unknown: effects that may have been performed
        :param skipped: effects that an operator skipped
        :param left: records at the end of the chunk that no call of this round performed
        """
        effects = Effects(
            version=self._batch.version,
            sink=self._batch.sink,
            chunk=chunk,
            done=done,
            refused=refused,
            unknown=unknown,
            skipped=skipped,
            left=left,
            round=round,
            nonce=self._nonce,
        )
        return self._log.put_effects(effects)
