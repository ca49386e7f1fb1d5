"""The home that Tidemark 0.1.0 wrote (`tests/fixtures`), for tests to unpack.

Two batch runs and events after them, the whole stack's files, the declarations, and what 0.1.0 answered, as
`tests/old_home_recording.py` recorded them.
"""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from typing import Any

from infra.home import read_json
from serving_layer.engine import QueryEngine
from serving_layer.query.limits import QueryLimits
from serving_layer.query.parse import parse_query
from serving_layer.rest import formats
from tests.serving_data import Place
from views.declarations import load_declarations

FIXTURE = Path(__file__).parent / "fixtures" / "home-0.1.0.tar.xz"
DECLARED = FIXTURE.with_name("home-0.1.0")
VERSION = "0.1.0"
OLD_LAYOUT = 1
SECRET_OF = "web"
"""The access key of the home whose secret is known: a password of nothing else."""


@dataclass(frozen=True)
class Recorded:
    """What 0.1.0 answered. Queries are a view, parameters and the result."""

    secret: str
    end: dict[str, int]
    """Of what was sent, as cuts are in JSON."""
    answers: list[tuple[str, dict[str, str], dict[str, Any]]]
    """Of batch and speed views together."""
    batch: dict[str, list[tuple[str, dict[str, str], list[Any]]]]
    """From each run alone: the rows."""
    alert: dict[str, Any]


def unpack(folder: Path) -> Path:
    """The home, in a folder where it never was; beside it, `views` with its declarations."""
    with tarfile.open(FIXTURE) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(folder, filter="data")
        else:  # some distributions have a Python 3.11 without it; the archive is our own
            archive.extractall(folder)  # noqa: S202
    copytree(DECLARED, folder / "views")
    home = folder / "home"
    assert read_json(home / "home.json") == {"layout": OLD_LAYOUT, "version": VERSION}
    return home


def recorded(home: Path) -> Recorded:
    """What 0.1.0 answered from this home."""
    value = json.loads((home.parent / "answers.json").read_text(encoding="utf-8"))
    window = value["window"]
    answers = [(view, window | given, result) for view, given, result in value["answers"]]
    batch = {run: [(view, window | given, rows) for view, given, rows in each] for run, each in value["batch"].items()}
    assert all(len(result["rows"]) > 0 for _, _, result in answers)
    assert all(len(rows) > 2 for each in batch.values() for _, _, rows in each)
    return Recorded(value["secret"], value["end"], answers, batch, value["alert"])


def batch_data(home: Path, home_of_views: Path | None = None) -> Place:
    """The batch data of the home, with the views that 0.1.0 declared."""
    declared = load_declarations((home_of_views or home).parent / "views", with_catalog=False)
    return Place(home, views=tuple(declared.views.values()))


def batch_answers(place: Place, of: Recorded, run: int) -> list[tuple[str, dict[str, str], list[Any]]]:
    """The queries of a run as Recorded has them, answered from batch views alone: nothing runs."""
    engine = QueryEngine(place.settings, place.declarations)
    try:
        found = []
        for view, given, _ in of.batch[str(run)]:
            query = parse_query(engine.served_view(view), list(given.items()), now=2e9, limits=QueryLimits())
            result = engine.execute(query)
            assert result.meta.batch is not None
            assert result.meta.batch.run == run
            found.append((view, given, json.loads(formats.body(result, "json"))["rows"]))
        return found
    finally:
        engine.close()
