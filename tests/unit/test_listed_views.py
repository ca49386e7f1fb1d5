"""The list of views: each source is asked once how fresh it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.settings import load_settings
from serving_layer.engine import QueryEngine, SourceStatus
from serving_layer.rest.views import listed
from views.declarations import declared_by

FIELDS = "event_id string, event_time timestamp, page string"


def test_a_list_of_views_asks_once_for_each_source_how_fresh_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "declared.py").write_text(
        "from views.aggregates import Count\nfrom views.source import Source\nfrom views.view import View\n"
        + "".join(
            f"{source} = Source({source!r}, fields={FIELDS!r})\n"
            + "".join(
                f"{source}_{n} = View('{source}_{n}', source={source}, grain='1h', answers={{'hits': Count()}})\n"
                for n in range(3)
            )
            for source in ("shop", "web")
        )
    )
    settings = load_settings(
        home=tmp_path / "home", views_dir=tmp_path, with_examples=False, redis_url="redis://127.0.0.1:1/0"
    )
    asked: list[str] = []
    real = QueryEngine.status

    def status(self: QueryEngine, source: str) -> SourceStatus:
        asked.append(source)
        return real(self, source)

    monkeypatch.setattr(QueryEngine, "status", status)
    declarations = declared_by(settings)
    engine = QueryEngine(settings, declarations)
    try:
        found = listed(engine, declarations.views.values())
    finally:
        engine.close()
    assert sorted(view["name"] for view in found) == [f"{source}_{n}" for source in ("shop", "web") for n in range(3)]
    assert sorted(asked) == ["shop", "web"]
