"""Write the speed views of a source: the one process that applies micro-batches, known by its token."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from hand_off.lag import KafkaEnd
from hand_off.speed_views.layout import Group, cut_text, new_generation
from hand_off.speed_views.reader import SpeedReader
from hand_off.speed_views.scripts import Outcome, Scripts
from master_dataset.cut import Cut


@dataclass(frozen=True)
class MicroBatch:
    """What one apply writes: absolute states, and the ids of the events that were counted."""

    start: Cut
    end: Cut
    gid: str
    states: Mapping[Group, bytes]
    seen_ids_name: str = ""
    seen_ids: bytes = b""
    horizon_ms: int = 0
    """How far back the seen ids that dropped duplicates must reach; 0: duplicates count, and no seen ids are kept."""
    forget: tuple[str, ...] = ()
    """Names of seen ids that are older than the horizon."""
    ranks: Mapping[Group, tuple[int, ...]] = field(default_factory=dict)
    """The numbers by which groups are ranked, for all groups of a view or for none (ranks.py)."""
    changes: bytes = b""
    """The entry for the change log (change_log.py); empty where nobody follows a view."""
    changes_kept: int = 0
    """How many entries the change log keeps."""
    grown: int = 0
    """By about how many bytes the states of the generation grow (`memory_of`)."""


class SpeedWriter:
    """Writes the speed views of one source as long as its token is the epoch; after that every method is FENCED."""

    def __init__(self, scripts: Scripts, reader: SpeedReader, token: str) -> None:
        self._scripts, self.reader, self.token = scripts, reader, token

    def init(self, run: int, cut: Cut, catalog: Iterable[str], topic_id: str = "") -> Outcome:
        """Create meta after Redis was lost, from the last entry of the publish log."""
        generation = new_generation(run, cut, catalog)
        return self._scripts.outcome("init", self.token, cut_text(cut), run, generation, topic_id)

    def load(self, chunk: int, *, is_last: bool, name: str, seen_ids: bytes, horizon_ms: int) -> Outcome:
        """Ids of events below `applied` that Redis lacks, not older than the horizon, chunk by chunk from 1."""
        return self._scripts.outcome("load", self.token, chunk, int(is_last), name, seen_ids, horizon_ms)

    def apply(self, batch: MicroBatch) -> Outcome:
        """Write the states, the seen ids and the cut of a micro-batch, all or nothing."""
        layout = self._scripts.layout
        keys: list[str] = [layout.change_log, layout.recent]
        arguments: list[Any] = [self.token, cut_text(batch.start), cut_text(batch.end), batch.gid]
        arguments += [batch.seen_ids_name, batch.seen_ids, batch.horizon_ms, batch.changes, batch.changes_kept]
        arguments += [batch.grown, len(batch.forget), *batch.forget]
        by_bucket: dict[tuple[str, int], list[Group]] = {}
        for group in batch.states:
            by_bucket.setdefault((group.view, group.bucket), []).append(group)
        for (view, bucket), groups in by_bucket.items():
            keys += [layout.buckets(batch.gid, view), layout.data(batch.gid, view, bucket)]
            arguments += [bucket, len(groups)]
            for group in groups:
                arguments += [group.key, batch.states[group]]
            numbers = [batch.ranks.get(group, ()) for group in groups]
            arguments.append(len(numbers[0]))
            for of_rank in zip(*numbers, strict=True):
                for group, number in zip(groups, of_rank, strict=True):
                    arguments += [number, group.key]
        return self._scripts.write_states("apply", keys, arguments)

    def report_problem(self, problem: str) -> Outcome:
        """Report why the writer cannot go on, for answers. It does not live meanwhile: a batch run may take over."""
        return self._scripts.outcome("heartbeat", self.token, 0, *[""] * 4, problem)

    def heartbeat(self, seconds: float, kafka_end: KafkaEnd | None = None, problem: str = "") -> Outcome:
        """Report that the writer lives, how far it is, and its problem. It lives for so many seconds."""
        report = (
            [cut_text(kafka_end.end), _ms(kafka_end.age_s), cut_text(kafka_end.applied), _ms(kafka_end.applied_age_s)]
            if kafka_end
            else [""] * 4
        )
        return self._scripts.outcome("heartbeat", self.token, int(seconds * 1000), *report, problem)


def _ms(seconds: float | None) -> int | str:
    return "" if seconds is None else ceil(seconds * 1000)
