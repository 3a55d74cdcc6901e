"""The registry of the kinds of versions, by which the codec decodes a plan or an outcome."""

from __future__ import annotations

from airflow_provider_streamsem.protocol.entries import Kind
from airflow_provider_streamsem.protocol.kinds.alter import Alter
from airflow_provider_streamsem.protocol.kinds.batch import Batch
from airflow_provider_streamsem.protocol.kinds.erase import Erase
from airflow_provider_streamsem.protocol.kinds.expire import Expire
from airflow_provider_streamsem.protocol.kinds.interval import Interval
from airflow_provider_streamsem.protocol.kinds.move import Move
from airflow_provider_streamsem.protocol.kinds.reprocess import Reprocess
from airflow_provider_streamsem.protocol.kinds.rewrite import Rewrite
from airflow_provider_streamsem.protocol.kinds.rollback import Rollback

KINDS: dict[str, type[Kind]] = {
    each.kind: each for each in (Batch, Interval, Reprocess, Rollback, Alter, Rewrite, Expire, Erase, Move)
}
"""Name of a kind in the log → its class."""
