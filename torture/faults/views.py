"""Declarations that change while everything runs: a view joins, becomes another, and goes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from torture.errors import TortureError
from torture.fault import Fault
from torture.installation import Installation
from torture.waiting import wait_for

FILE = "joining.py"
NAME = "joined"
SERVED_S = 60.0
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
    """Declare it, or declare it differently; a run lets it join, and from then on it is asked about too."""
    del chance
    (installation.views_dir / FILE).write_text(declaration(installation, version), encoding="utf-8")
    made = installation.declare().view(NAME)
    with installation.run_turn:
        ended = installation.batch_run()
    if ended.code:
        raise TortureError(f"the run failed: {ended.said[-200:]}")
    with installation.client("serving") as client:
        asked = {"from": "2026-03-01T00:00:00Z", "to": "2026-03-01T01:00:00Z"}

        def is_served() -> bool:
            answer = client.get(f"/views/{NAME}/query", params=asked)
            return answer.status_code == 200 and answer.json()["meta"]["version"] == made.hash[:16]

        wait_for(f"{NAME} {version} to be served", is_served, SERVED_S)
    yield


@contextmanager
def gone(installation: Installation, chance: random.Random) -> Iterator[None]:
    """No longer declared: the next run leaves it out, and the others must not notice."""
    del chance
    (installation.views_dir / FILE).unlink(missing_ok=True)
    installation.declare()
    with installation.run_turn:
        installation.batch_run()
    yield


FAULTS = [
    *(Fault(f"a view is declared {each}", "views", partial(declared, each), cost_s=25) for each in VERSIONS),
    Fault("a view is declared no more", "views", gone, cost_s=25),
]
