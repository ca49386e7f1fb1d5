"""After the last fault: everything that was acknowledged is there, once, and every answer is right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from hand_off.speed_views import SpeedViews
from infra.clients.kafka import librdkafka_config
from master_dataset.cut import is_below
from master_dataset.dead_letters.letters import DeadLetter, read_letters, watermarks
from master_dataset.reading.read import RecordFilter, read_records
from master_dataset.table import coverage
from master_dataset.table.paths import table_path
from torture.checker import Checker
from torture.errors import NotInTime
from torture.fates import Fates
from torture.installation import Installation
from torture.poison import FORGED
from torture.questions import whole
from torture.result import ProgrammeResult
from torture.truth import Truth
from torture.wait import wait_for

CAUGHT_UP_S = 240.0
SWEPT_S = 90.0
MAX_REPORTED = 20
NOWHERE = "acknowledged, and nowhere in the master dataset"


def wait_caught_up(
    installation: Installation,
    checker: Checker,
    fates: Fates,
    deadline_s: float = CAUGHT_UP_S,
    *,
    except_quarantined: bool = False,
) -> None:
    """Until an answer of each view that is not degraded holds everything that was acknowledged.

    `except_quarantined`: a quarantined view returns with a further run, and is not waited for.
    """
    end, began = fates.ends(), checker.now()

    def is_done() -> bool:
        return (
            not checker.behind(end, began, except_quarantined=except_quarantined) and installation.processes.is_ready()
        )

    try:
        wait_for("an answer of each view with everything that was acknowledged", is_done, deadline_s)
    except NotInTime as error:
        behind = {
            name: checker.by_view.get(name)
            for name in checker.behind(end, began, except_quarantined=except_quarantined)
        }
        raise NotInTime(f"{error} Behind: {behind}") from None


def wait_archived(installation: Installation, fates: Fates, deadline_s: float = CAUGHT_UP_S) -> None:
    """Until the master dataset holds everything that was acknowledged."""
    end, table = fates.ends(), table_path(installation.settings, installation.source_name)
    wait_for("the archiver", lambda: is_below(end, coverage.of(table).cut), deadline_s, every_s=0.5)


def wait_any_archived(installation: Installation, deadline_s: float) -> None:
    """Until the master dataset holds anything at all."""
    table = table_path(installation.settings, installation.source_name)
    wait_for("a commit of the archiver", lambda: any(coverage.of(table).cut.values()), deadline_s, every_s=0.5)


def check_swept(installation: Installation, deadline_s: float = SWEPT_S) -> None:
    """Until Redis keeps no states of generations that are no more: else it would grow with every run."""
    with installation.redis() as client:
        views = SpeedViews(client, installation.source_name)
        begin = f"{views.layout.prefix}v:"

        def is_swept() -> bool:
            kept = {each.gid for each in views.reader.snapshot().generations}
            held = (key.decode().removeprefix(begin) for key in client.scan_iter(f"{begin}*", count=1000))
            return {key.partition(":")[0] for key in held} <= kept

        wait_for("the states of old generations to be swept", is_swept, deadline_s, every_s=1)


def check_whole(installation: Installation, checker: Checker, truth: Truth) -> None:
    """Every view over everything there is."""
    with installation.client("serving", 60) as client:
        for view in installation.declared.views_of(installation.source_name):
            query = whole(view, truth.times())
            wait_for(f"an answer of {view.name}", partial(checker.ask, client, view, query), 60)


def check_master(installation: Installation, truth: Truth, fates: Fates, result: ProgrammeResult) -> None:
    """What the master dataset holds is what was acknowledged, once."""
    table = table_path(installation.settings, installation.source_name)
    batches = read_records(table, RecordFilter(with_invalid=True), ["partition", "offset", "event_id", "invalid"])
    judge_rows((row for batch in batches for row in batch.to_pylist()), truth, fates, result)


def judge_rows(found: Iterable[dict[str, Any]], truth: Truth, fates: Fates, result: ProgrammeResult) -> None:
    """Each offset of the topic is one row, with the id that was acknowledged there.

    And each acknowledged id has a row, and none has more than it was sent.
    """
    held: Counter[tuple[int, int]] = Counter()
    ids: dict[tuple[int, int], str] = {}
    for row in found:
        location = row["partition"], row["offset"]
        held[location] += 1
        ids[location] = "" if row["invalid"] else row["event_id"]
        if location in truth.invalid_at_first:  # it is judged again, its row is not
            ids[location] = truth.ids[location]
    result.doubled += _first_few(f"partition {p}, offset {o}: {n} rows" for (p, o), n in held.items() if n > 1)
    rows = Counter(event_id for event_id in ids.values() if event_id)
    result.doubled += _first_few(
        f"{event_id}: {number} rows, and sent {fates.tries[event_id]} times"
        for event_id, number in rows.items()
        if number > fates.tries[event_id]
    )
    result.lost += [f"{event_id}: {NOWHERE}" for event_id in sorted(fates.ids - rows.keys())]
    for location, event_id in fates.acknowledged.items():
        if ids.get(location) != event_id:
            result.lost.append(
                f"{event_id or 'poison'} at {location}: the master dataset has {ids.get(location)!r} there"
            )
    for location in [*truth.ids, *truth.poison]:
        if location not in held:
            result.lost.append(f"{truth.ids.get(location, 'poison')} at {location}: not in the master dataset")
    result.lost = result.lost[:MAX_REPORTED]


def check_letters(installation: Installation, truth: Truth, result: ProgrammeResult) -> None:
    """Each poison record is one dead letter, with its bytes and its reason; nothing else is."""
    config, source = librdkafka_config(installation.settings, installation.addresses.kafka), installation.source
    found: dict[tuple[int, int], list[DeadLetter]] = {}
    for letter in read_letters(config, source, *watermarks(config, source)):
        if letter.reason == FORGED:
            continue
        found.setdefault((letter.partition, letter.offset), []).append(letter)
    result.poison_missing += _first_few(_letter_problems(truth, found))


def _letter_problems(truth: Truth, found: dict[tuple[int, int], list[DeadLetter]]) -> Iterator[str]:
    for location, poison in truth.poison.items():
        letters = found.get(location, [])
        if len(letters) != 1:
            yield f"{poison.name} at {location}: {len(letters)} dead letters"
        elif letters[0].left_out_bytes is None and letters[0].value != poison.value:
            yield f"{poison.name} at {location}: its dead letter has other bytes"
        elif not letters[0].reason.startswith(poison.reason):
            yield f"{poison.name} at {location}: {letters[0].reason!r}, expected {poison.reason!r}"
    for location in found.keys() - truth.poison.keys() - truth.invalid_at_first:
        yield f"a dead letter of {location}, where {truth.ids.get(location, 'nothing')} stands"


def _first_few(found: Iterator[str]) -> list[str]:
    return list(found)[:MAX_REPORTED]
