"""Views and sources as JSON: what there is, how exact, how fresh."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from batch_layer.consistency.quarantine import to_json
from infra.times import iso_utc
from master_dataset.cut import cut_to_json
from serving_layer.engine import QueryEngine
from serving_layer.errors import NoBatchView, NotComputedYet
from serving_layer.query.provenance import exactness
from views.declarations import Declarations
from views.view import View

SHOWN_HASH = 16
"""Characters of a definition hash that are shown: they tell versions apart."""


def freshness(engine: QueryEngine, source: str) -> dict[str, Any]:
    """How fresh a source is: the run that is served, and how far its speed views are."""
    try:
        found = engine.status(source)
    except NoBatchView as error:
        nothing = dict.fromkeys(("run", "cut", "published", "batch_age_s", "applied", "lag_s", "lag_events"))
        return {**nothing, "degraded": True, "frozen": False, "why": error.detail}
    batch, speed = found.batch, found.speed
    return {
        "run": batch.run,
        "cut": cut_to_json(batch.cut),
        "published": iso_utc(batch.published) if batch.run else None,
        "batch_age_s": round(time.time() - batch.published, 1) if batch.run else None,
        "applied": None if speed is None else cut_to_json(speed.applied),
        "lag_s": None if speed is None else speed.lag_s,
        "lag_events": None if speed is None else speed.lag_events,
        "degraded": found.why is not None,
        "frozen": found.is_frozen,
        "why": found.why,
    }


def listed(engine: QueryEngine, views: Iterable[View]) -> list[dict[str, Any]]:
    """Summaries of views."""
    shown = list(views)
    fresh = {source: freshness(engine, source) for source in dict.fromkeys(view.source.name for view in shown)}
    return [_summary(engine, view, fresh[view.source.name]) for view in shown]


def described(engine: QueryEngine, view: View) -> dict[str, Any]:
    """A view in full: of the version that is served, if one is."""
    served = served_or_none(engine, view)
    shown = served or view
    return {
        **_summary(engine, view, freshness(engine, view.source.name)),
        "keys": {name: typed.type.ddl() for name, typed in shown.key_expressions.items()},
        "where": shown.where,
        "declared": view.hash[:SHOWN_HASH],
        "definition": json.loads(shown.definition()),
        "groups": None if served is None else engine.count_groups(view.name),
        "consistency": None if served is None else _consistency(engine, served),
    }


def _consistency(engine: QueryEngine, view: View) -> dict[str, Any] | None:
    """The last comparison of the speed view with the batch view. `set_aside`: why the speed view is quarantined."""
    found, reason = engine.last_comparison(view)
    return None if found is None and reason is None else {**(to_json(found) if found else {}), "set_aside": reason}


def compared_views(engine: QueryEngine, declarations: Declarations) -> Iterator[tuple[str, str, dict[str, float]]]:
    """For each view its source, its name, and the numbers of the last comparison of its speed view."""
    for view in declarations.views.values():
        served = served_or_none(engine, view)
        if served is None:
            continue
        with suppress(NoBatchView):
            found, reason = engine.last_comparison(served)
            numbers = {"set_aside": float(reason is not None)}
            if found is not None and not found.why_not:
                numbers |= {
                    "compared_groups": found.compared,
                    "mismatched_groups": found.mismatched,
                    "unexplained_groups": found.unexplained,
                }
            yield view.source.name, view.name, numbers


def _summary(engine: QueryEngine, declared: View, fresh: dict[str, Any]) -> dict[str, Any]:
    served = served_or_none(engine, declared)
    view = served or declared
    return {
        "name": view.name,
        "doc": declared.doc,
        "source": view.source.name,
        "version": None if served is None else view.hash[:SHOWN_HASH],
        "keys": list(view.keys),
        "grain": view.grain,
        "answers": {name: exactness(view, name) for name in view.answers},
        "data": None if served is None else _data_range(engine, view.name),
        "since": None if served is None else _since(engine, view.name),
        "freshness": fresh,
    }


def _data_range(engine: QueryEngine, name: str) -> dict[str, str] | None:
    try:
        data = engine.data_range(name)
    except NoBatchView:  # a view with damaged files is listed all the same; its queries give the reason
        return None
    return None if data is None else {"from": iso_utc(data[0]), "to": iso_utc(data[1])}


def _since(engine: QueryEngine, name: str) -> dict[str, Any] | None:
    with suppress(NoBatchView):
        return engine.since(name)
    return None


def served_or_none(engine: QueryEngine, declared: View) -> View | None:
    """A view as the run that is served has it; None where there is none yet."""
    try:
        return engine.served_view(declared.name)
    except (NotComputedYet, NoBatchView):
        return None
