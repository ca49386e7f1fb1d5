"""A view's declaration as text: whatever can be declared comes back meaning the same."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from hand_off import definitions
from hand_off.batch_folder import BatchFolder
from hand_off.errors import BatchError
from views import aggregates, serialization
from views.aggregates import (
    Aggregate,
    Average,
    Count,
    DecayedRate,
    Distinct,
    First,
    FirstK,
    Histogram,
    Kurtosis,
    Largest,
    Last,
    LastK,
    Max,
    Min,
    Quantiles,
    Skewness,
    Smallest,
    StdDev,
    Sum,
    TopK,
    Trend,
    UniqueValues,
    ValueCounts,
    Variance,
)
from views.declarations import ALL_EXAMPLES, load_declarations
from views.derived import Derived, Ratio
from views.errors import DeclarationError
from views.source import Source
from views.view import View

CATALOG = load_declarations(examples=ALL_EXAMPLES).views
VISITS = Source("visits", fields="event_id string, event_time timestamp, page string, n int, ms double")
WHERE = "n > 1"
UNUSUAL: list[Aggregate] = [
    Count("page", where=WHERE),
    Sum("ms", where=WHERE),
    Average("n", where=WHERE),
    Variance("ms", where=WHERE, population=True),
    StdDev("ms", where=WHERE, population=True),
    Skewness("ms", where=WHERE),
    Kurtosis("n", where=WHERE),
    Min("n", where=WHERE),
    Max("page", where=WHERE),
    First("page", where=WHERE),
    Last("page", where=WHERE),
    FirstK("page", where=WHERE, k=3),
    LastK("page", where=WHERE, k=3),
    Largest("ms", where=WHERE, k=7),
    Smallest("ms", where=WHERE, k=7),
    Distinct("page", where=WHERE, precision=10),
    Distinct("page", where=WHERE, exact=True, at_most=77),
    Quantiles("ms", where=WHERE, at=(0.25, 0.75), error=0.02),
    Quantiles("ms", where=WHERE, at=0.9, error=0.05),
    ValueCounts("page", where=WHERE, at_most=7),
    UniqueValues("n", where=WHERE, at_most=7),
    Trend("ms", where=WHERE),
    DecayedRate("n", where=WHERE, half_life="30m"),
    Histogram("ms", where=WHERE, bounds=(1.0, 2.5, 10.0)),
    TopK("page", where=WHERE, k=3, room=50),
]


def view_of(**answers: Any) -> View:
    return View("v", VISITS, {"events": Count(), **answers}, keys={"page": "upper(page)"}, grain="5m", where="n > 0")


def again(view: View) -> View:
    return serialization.from_text(serialization.to_text(view), view.source)


# ---- text ----------------------------------------------------------------------


@pytest.mark.parametrize("name", CATALOG)
def test_a_view_of_the_catalog_comes_back(name: str) -> None:
    view = CATALOG[name]
    assert again(view) == view
    assert again(view).hash == view.hash
    assert list(again(view).answers) == list(view.answers), "answers are presented in the order they were declared"


@pytest.mark.parametrize("answer", UNUSUAL, ids=repr)
def test_an_aggregate_comes_back_with_all_that_was_said(answer: Aggregate) -> None:
    view = view_of(answer=answer)
    assert again(view).answers["answer"] == answer
    assert again(view).hash == view.hash != view_of(answer=replace(answer, where=None)).hash


def test_every_aggregate_and_every_argument_was_tried() -> None:
    """Fails when an aggregate, or an argument of one, is added and not tried above."""
    kinds = {getattr(aggregates, name) for name in aggregates.__all__}
    kinds = {kind for kind in kinds if issubclass(kind, Aggregate) and kind is not Aggregate}
    assert {type(answer) for answer in UNUSUAL} == kinds
    for kind in kinds:
        tried = [answer for answer in UNUSUAL if type(answer) is kind]
        for each in fields(kind):
            assert any(getattr(answer, each.name) != each.default for answer in tried), f"{kind.__name__}.{each.name}"


def test_derived_answers_come_back() -> None:
    view = view_of(errors=Count(where=WHERE), share=Ratio("errors", "events"), twice=Derived("events * 2"))
    assert again(view) == view
    assert again(view).hash == view.hash


def test_a_view_with_defaults_only_comes_back() -> None:
    view = View("v", VISITS, {"events": Count()})
    assert again(view) == view


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "null",
        '"v"',
        '{"name": "v", "keys": {}, "grain": "1h", "where": null, "answers": {"n": {"is": "Nothing"}}}',
        '{"name": "v", "keys": {}, "grain": "1h", "where": null, "answers": {"n": {"of": "page"}}}',
        '{"name": "v", "keys": {}, "grain": "1h", "where": null, "answers": {"n": {"is": "Sum", "off": "n"}}}',
        '{"name": "v", "keys": {}, "grain": "1h", "where": null, "answers": {"n": 5}}',
    ],
)
def test_what_is_no_declaration_is_refused(text: str) -> None:
    with pytest.raises(DeclarationError, match="This is not a stored declaration of a view"):
        serialization.from_text(text, VISITS)


@pytest.mark.parametrize("name", ["Position", "Aggregate", "annotations", "__doc__"])
def test_only_aggregates_are_made_of_a_stored_text(name: str) -> None:
    declared = json.loads(serialization.to_text(view_of()))
    declared["answers"]["events"] = {"is": name, "of": "", "where": None}
    with pytest.raises(DeclarationError):
        serialization.from_text(json.dumps(declared), VISITS)


# ---- on the disk ---------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> BatchFolder:
    return BatchFolder(tmp_path / "visits")


USED = view_of(slow=Sum("ms"))


def test_a_kept_view_is_restored(folder: BatchFolder) -> None:
    definitions.keep(folder, USED)
    definitions.keep(folder, USED)
    assert definitions.restore(folder, USED.hash, VISITS) == USED
    assert definitions.load(folder, USED.hash) == USED.definition()


def test_a_field_that_the_view_does_not_look_at_may_change(folder: BatchFolder) -> None:
    definitions.keep(folder, USED)
    wider = replace(VISITS, fields=VISITS.fields + ", extra string")
    assert definitions.restore(folder, USED.hash, wider).hash == USED.hash


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ("event_id string, event_time timestamp, page string, n bigint, ms double", "view 'v' means something else"),
        ("event_id string, event_time timestamp, page string, n int, ms string", "ms"),
        ("event_id string, event_time timestamp, page string, n int", "ms"),
    ],
)
def test_a_source_whose_fields_mean_something_else_is_refused_with_the_remedy(
    folder: BatchFolder, changed: str, why: str
) -> None:
    definitions.keep(folder, USED)
    with pytest.raises(BatchError) as refused:
        definitions.restore(folder, USED.hash, replace(VISITS, fields=changed))
    said = str(refused.value)
    assert said.startswith(
        f"Definition {USED.hash[:12]} cannot be computed over source 'visits' as it is declared now: "
    )
    assert why in said
    assert "`tidemark batch run`" in said


def test_a_definition_that_was_never_kept_or_is_damaged_is_refused_with_the_remedy(folder: BatchFolder) -> None:
    with pytest.raises(BatchError, match=r"`tidemark batch run`"):
        definitions.restore(folder, USED.hash, VISITS)
    definitions.keep(folder, USED)
    (declared,) = folder.definitions.glob("*.declared")
    declared.write_text(declared.read_text()[:-20])
    with pytest.raises(BatchError, match=r"This is not a stored declaration .*`tidemark batch run`"):
        definitions.restore(folder, USED.hash, VISITS)
    declared.write_bytes(b"\xff\xfe")
    with pytest.raises(BatchError, match=r"`tidemark batch run`"):
        definitions.restore(folder, USED.hash, VISITS)
