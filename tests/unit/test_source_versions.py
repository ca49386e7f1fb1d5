"""A serving process that goes on for years says which version of a source is to follow, and why one may not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from infra.settings import Settings, load_settings
from infra.store import PosixStore
from master_dataset.table.paths import own_folder, table_path
from serving_layer.declared_now import DeclaredNow
from serving_layer.rest.source_versions import pending_version
from views.declarations import declared_by
from views.source import Source

SHOP = Source("shop", fields="event_id string, event_time timestamp, item string, cents int")
NEXT = replace(SHOP, version=2, fields=f"{SHOP.fields}, coupon string")
TEXT = """
from tidemark import Source
shop = Source("shop", version={version}, fields="event_id string, event_time timestamp, item string")
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    views = tmp_path / "views"
    views.mkdir()
    (views / "shop.py").write_text(TEXT.format(version=1))
    return load_settings(home=tmp_path / "home", views_dir=views, with_examples=False)


def adopt(settings: Settings, source: Source) -> None:
    store = PosixStore(own_folder(table_path(settings, source.name)))
    store.put_if_absent(f"readings/{source.version:08}", json.dumps(source.reading).encode())


def test_a_declared_version_is_pending_until_it_is_served(settings: Settings) -> None:
    adopt(settings, SHOP)
    assert pending_version(settings, SHOP, SHOP) is None
    assert pending_version(settings, SHOP, None) is None, "nothing is declared any more"
    found = pending_version(settings, SHOP, NEXT)
    assert found is not None
    assert (found["version"], found["adopted"], found["refused"]) == (2, False, None)
    assert any("coupon" in change for change in found["changes"])
    adopt(settings, NEXT)
    found = pending_version(settings, SHOP, NEXT)
    assert found is not None
    assert (found["version"], found["adopted"], found["refused"]) == (2, True, None)
    assert any("coupon" in change for change in found["changes"])
    assert pending_version(settings, NEXT, NEXT) is None


@pytest.mark.parametrize(
    ("declared", "why"),
    [
        (replace(SHOP, version=3), "its version is 3"),
        (replace(NEXT, fields=SHOP.fields.replace("cents int", "cents string")), "'cents' was int and is string"),
        (replace(SHOP, fields=f"{SHOP.fields}, coupon string"), "Declare it with version=2"),
    ],
)
def test_a_version_that_may_not_follow_says_why(settings: Settings, declared: Source, why: str) -> None:
    adopt(settings, SHOP)
    found = pending_version(settings, SHOP, declared)
    assert found is not None
    assert (found["changes"], found["adopted"]) == ([], False)
    assert why in found["refused"]


def test_damaged_readings_hide_nothing_else(settings: Settings) -> None:
    adopt(settings, SHOP)
    (own_folder(table_path(settings, "shop")) / "readings" / "00000001").write_text("{")
    assert pending_version(settings, SHOP, NEXT) is None


def test_a_folder_that_changed_is_loaded_again_and_a_broken_one_declares_what_it_did(settings: Settings) -> None:
    declared = DeclaredNow(settings, declared_by(settings))
    first = declared()
    assert first.source("shop").version == 1
    assert declared() is first, "nothing changed"
    assert settings.views_dir is not None
    file = settings.views_dir / "shop.py"
    file.write_text(TEXT.format(version=2))
    assert declared().source("shop").version == 2
    file.write_text("this is not Python")
    assert declared().source("shop").version == 2
    file.write_text(TEXT.format(version=3))
    assert declared().source("shop").version == 3
