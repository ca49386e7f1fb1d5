"""The catalog and the page that describes it are in step."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from infra.settings import Settings
from views.declarations import ALL_EXAMPLES, DEFAULT_EXAMPLES, load_declarations
from views.view import View

ROOT = Path(__file__).parents[2]
CATALOG = load_declarations(examples=ALL_EXAMPLES)


def row_of(view: View) -> str:
    """The line of docs/catalog.md for a view, but for its last cell, which a person writes."""
    aggregates = list(dict.fromkeys(type(answer).__name__ for answer in view.answers.values()))
    return (
        f"| [{view.name}](../views/catalog/{view.name}.py) | {view.source.name} | {view.doc} Per "
        f"{' and '.join([*view.keys, view.grain])}. | {', '.join(aggregates)} |"
    )


@pytest.mark.parametrize("name", CATALOG.views)
def test_a_view_is_in_the_file_of_its_name_and_says_what_it_answers(name: str) -> None:
    module = importlib.import_module(f"views.catalog.{name}")
    assert getattr(module, name) == CATALOG.views[name]
    assert CATALOG.views[name].doc.endswith(".")
    assert CATALOG.views[name].source.doc.endswith(".")


def test_the_page_has_every_view_as_it_is() -> None:
    page = (ROOT / "docs" / "catalog.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| [")]
    for view in CATALOG.views.values():
        assert [row for row in rows if row.startswith(row_of(view))], f"docs/catalog.md lacks: {row_of(view)}"
    assert len(rows) == len(CATALOG.views)


def test_what_runs_when_nothing_is_chosen_is_said_alike_everywhere() -> None:
    assert Settings.model_fields["examples"].default == DEFAULT_EXAMPLES
    assert list(load_declarations().sources) == [DEFAULT_EXAMPLES]
