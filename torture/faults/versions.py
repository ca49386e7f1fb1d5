"""The shop gets its next version while events come: they are judged and read again, and none counts twice.

Some events come that only the second version finds valid, and come again after the switch.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import httpx

from torture.errors import BrokenPromise, NotInTime, TortureError
from torture.fault import RUN_S, Fault
from torture.faults.failpoints import IN_EVOLUTIONS
from torture.installation import Installation
from torture.load import PlannedRecord, history
from torture.wait import wait_for
from views.sample_events import encode

FILE = "declared.py"
FIRST = '    "shop",\n'
VERSION = re.compile(r"    version=(\d+),\n")
ITEM = re.compile(r"item string( DEFAULT '\w+')?")
LARGE, EVENTS, AGAIN = 3_000_000_000, 40, 15
"""Tries that no int holds; how many events have so many, and how many of these are sent again after the switch."""
UP_S, SENT_S, SERVED_S = 60.0, 60.0, 90.0
TRIES = 3
"""A service that the run needs may still recover from the fault before."""
KILLED_AT = (*IN_EVOLUTIONS, "run.before_publish", "run.after_publish", "speed.before_load")


def next_version(text: str) -> str:
    """The declaration of the shop with its next version: an item where none came, and room for more tries."""
    if FIRST not in text:
        raise TortureError("only the shop of the programme gets other versions")
    found = VERSION.search(text)
    number = 2 if found is None else int(found[1]) + 1
    text = VERSION.sub("", text).replace(FIRST, f"{FIRST}    version={number},\n", 1)
    return ITEM.sub(f"item string DEFAULT 'none{number}'", text, count=1).replace("tries int", "tries bigint")


@contextmanager
def evolved(installation: Installation, chance: random.Random, killed_at: str = "") -> Iterator[None]:
    """Declare the next version, and let a run switch to it.

    `killed_at`: a failpoint of the switch, where the run, or the speed layer, is killed. The next run goes on.
    """
    wait_for("every process to be there", installation.processes.is_up, UP_S)
    path = installation.views_dir / FILE
    declared = next_version(path.read_text(encoding="utf-8")) if path.exists() else next_version("")
    armed = installation.failpoints_dir / killed_at
    with installation.run_turn:
        large = _large(installation, chance)
        _send(installation, large)
        new = path.with_suffix(".new")
        new.write_text(declared, encoding="utf-8")
        new.replace(path)  # at once: others read it meanwhile
        installation.declare()
        if killed_at:
            armed.touch()
        try:
            _switch(installation, is_killed=bool(killed_at))
            if killed_at and armed.exists():
                raise TortureError(f"nobody came to {killed_at}")
        finally:
            if killed_at:
                armed.unlink(missing_ok=True)
    _wait_served(installation)
    _send(installation, [replace(each, duplicate="publish") for each in chance.sample(large, AGAIN)])
    yield


def _large(installation: Installation, chance: random.Random) -> list[PlannedRecord]:
    source = installation.source
    made = history(source, list(installation.declared.views_of(source.name)), chance, EVENTS)
    known: dict[str, PlannedRecord] = {}
    for record in made:
        if record.event is not None and record.event_id not in known:
            event = replace(record.event, fields={**record.event.fields, "tries": LARGE})
            known[record.event_id] = replace(record, event=event, value=encode(event.fields).encode(), duplicate=None)
    return list(known.values())


def _send(installation: Installation, records: Sequence[PlannedRecord]) -> None:
    installation.bulk.extend(records)
    wait_for("the records to be sent", lambda: not installation.bulk, SENT_S)


def _switch(installation: Installation, *, is_killed: bool) -> None:
    """Make runs until one succeeds: the first is killed, or a service that it needs."""
    for _ in range(TRIES + is_killed):
        ended = installation.commands.batch_run()
        if not ended.code:
            return
    raise BrokenPromise(
        f"The source got its next version. A run should switch to it, and none succeeded; the last said: "
        f"{ended.output[-1000:]}"
    )


def _wait_served(installation: Installation) -> None:
    """Until answers are by the version that is declared."""
    view = next(iter(installation.declared.views_of(installation.source_name)))
    query, answered = {"from": "2026-03-01T00:00:00Z", "to": "2026-03-01T01:00:00Z"}, ""

    def is_served() -> bool:
        nonlocal answered
        try:
            answer = client.get(f"/views/{view.name}/query", params=query)
        except httpx.HTTPError as error:
            answered = repr(error)
            return False
        answered = f"{answer.status_code} {answer.text[:300]}"
        return answer.status_code == 200 and answer.json()["meta"]["version"] == view.hash[:16]

    with installation.client("serving") as client:
        try:
            wait_for("the next version to be served", is_served, SERVED_S)
        except NotInTime:
            raise BrokenPromise(
                f"A run of version {view.source.version} of {installation.source_name!r} was published. After "
                f"{SERVED_S:g} s {view.name} is still answered by another: {answered}"
            ) from None


FAULTS = [
    Fault("a source gets its next version", "views", evolved, 2, cost_s=RUN_S + 30),
    *(
        Fault(f"a switch killed at {name}", "views", partial(evolved, killed_at=name), 2, cost_s=2 * RUN_S)
        for name in KILLED_AT
    ),
]
