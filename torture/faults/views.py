"""Declarations that change under load: a view is added, changed and removed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import httpx

from torture.errors import BrokenPromise, NotInTime, TortureError
from torture.fault import RUN_S, Fault
from torture.installation import Installation
from torture.wait import wait_for

FILE = "joining.py"
NAME = "joined"
SERVED_S = 60.0
UP_S = 60.0
TRIES = 3
"""A service that the run needs may still recover from the fault before."""
VERSIONS = {
    "with a count": "{'records': Count()}",
    "with a filtered count": "{'records': Count(), 'named': Count(where=\"{id} is not null\")}",
}


def declaration(installation: Installation, version: str) -> str:
    """A further view of the source under torture, as a file of the views folder."""
    source = installation.source
    answers = VERSIONS[version].replace("{id}", source.id_field)
    return (
        "from views.aggregates import Count\nfrom views.source import Source\nfrom views.view import View\n"
        f"from . import {_declaring(installation)} as others\n\n"
        "sources = [each for each in vars(others).values() if isinstance(each, Source)]\n"
        f"source = next(each for each in sources if each.name == {source.name!r})\n"
        f"{NAME} = View({NAME!r}, source=source, grain='1h', answers={answers})\n"
    )


def _declaring(installation: Installation) -> str:
    """The module that has the source; its declaration may change too."""
    for path in sorted(installation.views_dir.glob("*.py")):
        if path.name != FILE and f'"{installation.source_name}"' in path.read_text(encoding="utf-8"):
            return path.stem
    raise TortureError(f"No file in {installation.views_dir} declares {installation.source_name!r}.")


@contextmanager
def declared(version: str, installation: Installation, chance: random.Random) -> Iterator[None]:
    """Declare the view, or declare it differently. After a run it is queried too."""
    del chance
    _join(installation, version)
    yield


def _join(installation: Installation, version: str) -> None:
    wait_for("every process to be there", installation.processes.is_up, UP_S)
    (installation.views_dir / FILE).write_text(declaration(installation, version), encoding="utf-8")
    made = installation.declare().view(NAME)
    _run(installation, f"view {NAME!r} was declared {version}")
    with installation.client("serving") as client:
        query = {"from": "2026-03-01T00:00:00Z", "to": "2026-03-01T01:00:00Z"}

        answered = ""

        def is_served() -> bool:
            nonlocal answered
            try:
                answer = client.get(f"/views/{NAME}/query", params=query)
            except httpx.HTTPError as error:
                answered = repr(error)
                return False
            answered = f"{answer.status_code} {answer.text[:300]}"
            return answer.status_code == 200 and answer.json()["meta"]["version"] == made.hash[:16]

        try:
            wait_for(f"{NAME} {version} to be served", is_served, SERVED_S)
        except NotInTime:
            raise BrokenPromise(
                f"View {NAME!r} was declared {version} and a run was published. It should be served as "
                f"{made.hash[:16]}; after {SERVED_S:g} s the answer is {answered}"
            ) from None


@contextmanager
def gone(installation: Installation, chance: random.Random) -> Iterator[None]:
    """Remove the declaration: the next run leaves the view out, and others stay as they are."""
    if not (installation.views_dir / FILE).exists():
        _join(installation, chance.choice(sorted(VERSIONS)))
    wait_for("every process to be there", installation.processes.is_up, UP_S)
    (installation.views_dir / FILE).unlink()
    installation.declare()
    _run(installation, f"view {NAME!r} is declared no more")
    yield


def _run(installation: Installation, reason: str) -> None:
    """Make a run, which must succeed with the new declarations."""
    with installation.run_turn:
        for _ in range(TRIES):
            ended = installation.commands.batch_run()
            if not ended.code:
                return
    raise BrokenPromise(f"{reason}. A run should succeed, and {TRIES} failed; the last said: {ended.output[-1000:]}")


FAULTS = [
    *(Fault(f"a view is declared {each}", "views", partial(declared, each), cost_s=RUN_S) for each in VERSIONS),
    Fault("a view is declared no more", "views", gone, cost_s=RUN_S + 30),
]
