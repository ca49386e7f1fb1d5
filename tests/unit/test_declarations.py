"""What is declared, put together: views and their sources, the chosen examples, a folder of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

from views.catalog.page_hits import page_hits
from views.catalog.service_errors import logs
from views.catalog.web import web
from views.declarations import declared_by, load_declarations
from views.errors import DeclarationError

HEAD = """
from views.aggregates import Count, Sum
from views.source import Source
from views.view import View
"""
SHOP = 'shop = Source("shop", fields="event_id string, event_time timestamp, item string, price double")'
WEB_VIEWS = ["page_hits", "page_latency", "signups", "top_pages"]


def write(folder: Path, **files: str) -> Path:
    """A folder of declarations; each file is what stands after the imports."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(f"{HEAD}{text}\n", encoding="utf-8")
    return folder


def view(name: str, source: str = "shop", answers: str = "{'sold': Count()}") -> str:
    return f"{name} = View({name!r}, source={source}, answers={answers})"


class Settings(NamedTuple):
    views_dir: Path | None = None
    with_examples: bool = True
    examples: str = "web"


# ---- views --------------------------------------------------------------------


def test_views_are_found_by_name_and_by_source(tmp_path: Path) -> None:
    found = load_declarations(write(tmp_path, shop="\n".join([SHOP, view("sales"), view("returned")])))
    assert sorted(found.views) == sorted([*WEB_VIEWS, "sales", "returned"])
    assert found.view("page_hits") is page_hits
    assert [each.name for each in found.views_of("shop")] == ["returned", "sales"]
    assert [each.name for each in found.views_of("web")] == WEB_VIEWS
    assert found.views_of("nothing") == []


def test_a_view_that_is_not_declared_is_refused_with_those_that_are(tmp_path: Path) -> None:
    write(tmp_path, shop="\n".join([SHOP, view("sales"), view("returned")]))
    with pytest.raises(DeclarationError, match=r"There is no view 'sale'\. There are: returned, sales\."):
        load_declarations(tmp_path, with_catalog=False).view("sale")
    with pytest.raises(DeclarationError, match=r"There is no view 'sale'\. There are: none\."):
        load_declarations(with_catalog=False).view("sale")


def test_a_view_brings_its_source(tmp_path: Path) -> None:
    text = "View('errors', source=service_errors.logs, answers={'entries': Count()})"
    write(tmp_path, errors=f"from views.catalog import service_errors\nerrors = {text}")
    found = load_declarations(tmp_path, with_catalog=False)
    assert found.sources == {"logs": logs}
    assert list(found.views) == ["errors"], "the example's own view is not asked for"


def test_a_view_that_a_second_file_has_too_is_one_view(tmp_path: Path) -> None:
    imported = "from views.catalog.page_hits import page_hits"
    write(tmp_path, a=imported, b=f"{SHOP}\n{view('sales')}", c=f"{SHOP}\n{view('sales')}")
    found = load_declarations(tmp_path)
    assert sorted(found.views) == sorted([*WEB_VIEWS, "sales"])
    assert list(load_declarations(write(tmp_path, b="", c=""), with_catalog=False).views) == ["page_hits"]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"a": f"{SHOP}\n{view('sales')}", "b": f"{SHOP}\n{view('sales', answers='dict(revenue=Count())')}"},
            "/b.py: view 'sales' is declared twice, differently. The other one is in ",
        ),
        (
            {"a": f"{SHOP}\n{view('page_hits')}"},
            "/a.py: view 'page_hits' is declared twice, differently. The other one is in ",
        ),
        (
            {"a": SHOP, "b": f"{SHOP.replace('double', 'int')}\n{view('sales')}"},
            "/b.py: source 'shop' is declared twice, differently. The other one is in ",
        ),
        (
            {"a": f"{SHOP}\n{view('sales', answers='dict(sold=Sum(chr(113)))')}"},
            "/a.py: View 'sales', answer 'sold': ",
        ),
        (
            {"a": f"from .b import shop\n{view('sales')}", "b": "shop = Source('Shop', fields='x int')"},
            "/b.py: Source 'Shop': a name consists of",
        ),
        ({"a": f"from .b import shop\n{view('sales')}", "b": "1 / 0"}, "/b.py cannot be loaded: ZeroDivisionError"),
        ({"a": "from .nothing import shop"}, "/a.py cannot be loaded: ModuleNotFoundError"),
    ],
)
def test_what_cannot_be_is_refused_with_the_file(tmp_path: Path, files: dict[str, str], message: str) -> None:
    with pytest.raises(DeclarationError) as refused:
        load_declarations(write(tmp_path, **files))
    assert str(refused.value).removeprefix(str(tmp_path)).startswith(message)


@pytest.mark.parametrize("importer", ["a", "z"])
def test_a_file_may_import_another_of_its_folder(tmp_path: Path, importer: str) -> None:
    """Whichever is loaded first."""
    write(tmp_path, **{importer: f"from .shop import shop\n{view('sales')}", "shop": SHOP})
    found = load_declarations(tmp_path, with_catalog=False)
    assert found.views["sales"].source is found.sources["shop"]


def test_a_folder_is_read_again_each_time(tmp_path: Path) -> None:
    for name, other in (("one", "sales"), ("two", "returned")):
        folder = tmp_path / name
        folder.mkdir()
        write(folder, a=f"from .shop import shop\n{view(other)}", shop=SHOP.replace("item", f"item_{name}"))
        found = load_declarations(folder, with_catalog=False)
        assert list(found.views) == [other]
        assert f"item_{name}" in found.sources["shop"].fields


# ---- examples -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("examples", "sources"),
    [
        ("web", ["web"]),
        ("logs", ["logs"]),
        (" web , cards,", ["cards", "web"]),
        ("all", ["ads", "cards", "cloudevents", "logs", "otel_logs", "posthog", "segment", "sensors", "syslog", "web"]),
        ("", []),
    ],
)
def test_only_the_chosen_examples_run(examples: str, sources: list[str]) -> None:
    found = load_declarations(examples=examples)
    assert sorted(found.sources) == sources
    assert sorted({each.source.name for each in found.views.values()}) == sources


def test_an_example_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(DeclarationError) as refused:
        load_declarations(examples="web,log")
    assert str(refused.value) == (
        "examples names 'log', which is not a source of the catalog. There are: ads, cards, cloudevents, logs, "
        "otel_logs, posthog, segment, sensors, syslog, web; or 'all'."
    )


def test_a_name_of_an_example_that_does_not_run_is_free(tmp_path: Path) -> None:
    write(tmp_path, shop="\n".join([SHOP.replace("shop", "logs"), view("service_errors", source="logs")]))
    assert load_declarations(tmp_path).views["service_errors"].source != logs
    with pytest.raises(DeclarationError, match="source 'logs' is declared twice, differently"):
        load_declarations(tmp_path, examples="all")


def test_settings_say_what_runs(tmp_path: Path) -> None:
    write(tmp_path, shop=f"{SHOP}\n{view('sales')}")
    assert declared_by(Settings()).sources == {"web": web}
    assert sorted(declared_by(Settings(tmp_path, examples="ads")).views) == ["campaign_spend", "sales"]
    assert sorted(declared_by(Settings(tmp_path, with_examples=False)).views) == ["sales"]
    assert declared_by(Settings(with_examples=False, examples="all")).sources == {}
