"""Which keys a question is about: the test is the naive one, the list is all of them, the prefix excludes none."""

from __future__ import annotations

from datetime import date
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving_layer.query.key_selection import select_keys
from serving_layer.query.model import Filter
from tests.tiers import times
from views.aggregates import Count
from views.keys import pack_key, unpack_key
from views.source import Source
from views.view import View

WEB = Source("web", fields="event_id string, event_time timestamp, url string, status int, ok boolean, day_of date")
VIEW = View("v", WEB, {"hits": Count()}, keys={"url": "url", "status": "status", "ok": "ok", "on_day": "day_of"})
URL_LAST = View("w", WEB, {"hits": Count()}, keys={"status": "status", "url": "url"})
TOTAL = View("t", WEB, {"hits": Count()})
MOST = 50

VALUES: dict[str, list[Any]] = {
    "url": [None, "", "/", "/a", "/ab", "/b", "a\x00", "a\x00b", "é", "\U0001f600"],
    "status": [None, -1, 0, 1, 200, 2**63 - 1],
    "ok": [None, True, False],
    "on_day": [None, date(1969, 12, 31), date(2026, 2, 28)],
}
PREFIXES = ["", "/", "/a", "a\x00", "é", "x"]


def filters_of(names: list[str]) -> st.SearchStrategy[list[Filter]]:
    """At most one filter of each kind for each key, as asking makes them."""
    one = {}
    for name in names:
        values = st.lists(st.sampled_from(VALUES[name]), min_size=1, max_size=3, unique=True).map(tuple)
        kinds = [st.builds(Filter, st.just(name), st.sampled_from(["is", "not"]), values)]
        if name == "url":
            prefixes = st.lists(st.sampled_from(PREFIXES), min_size=1, max_size=2, unique=True).map(tuple)
            kinds.append(st.builds(Filter, st.just(name), st.just("prefix"), prefixes))
        one[name] = st.one_of(kinds)
    return st.lists(
        st.sampled_from(names).flatmap(lambda name: one[name]), unique_by=lambda each: (each.key, each.kind)
    )


def passes(view: View, filters: list[Filter], key: tuple[Any, ...]) -> bool:
    """The naive definition."""
    for each in filters:
        value = key[[*view.keys].index(each.key)]
        if each.kind == "is" and value not in each.values:
            return False
        if each.kind == "not" and value in each.values:
            return False
        if each.kind == "prefix" and not any(isinstance(value, str) and value.startswith(one) for one in each.values):
            return False
    return True


@pytest.mark.parametrize("view", [VIEW, URL_LAST], ids=["url first", "url last"])
@settings(max_examples=times(40, 1500), deadline=None)
@given(data=st.data())
def test_wanted_keys_are_those_that_pass_all_filters(view: View, data: st.DataObject) -> None:
    filters = data.draw(filters_of([*view.keys]))
    found = select_keys(view, filters, MOST)
    every = [*product(*(VALUES[name] for name in view.keys))]
    right = [key for key in every if passes(view, filters, key)]
    assert [key for key in every if found.matches(key)] == right
    assert all(pack_key(key).startswith(found.prefix) for key in right)
    if found.keys is not None:
        assert [*found.keys] == sorted(pack_key(key) for key in right)
        assert len(found.keys) <= MOST


EXAMPLES: list[tuple[View, list[Filter], list[tuple[Any, ...]] | None, bytes]] = [
    (TOTAL, [], [()], b""),
    (VIEW, [], None, b""),
    (URL_LAST, [Filter("status", "is", (200,)), Filter("url", "is", ("/b", "/a"))], [(200, "/a"), (200, "/b")],
     pack_key((200,)) + b"\x06/"),
    (URL_LAST, [Filter("status", "is", (200,))], None, pack_key((200,))),
    (URL_LAST, [Filter("status", "is", (200,)), Filter("url", "prefix", ("/a",))], None, pack_key((200,)) + b"\x06/a"),
    (URL_LAST, [Filter("status", "is", (5,)), Filter("url", "prefix", ("/ab", "/ac"))], None,
     pack_key((5,)) + b"\x06/a"),
    (URL_LAST, [Filter("status", "is", (1, 2))], None, pack_key((1,))[:-1]),
    (URL_LAST, [Filter("status", "not", (1,)), Filter("url", "is", ("/a",))], None, b""),
    (URL_LAST, [Filter("url", "prefix", ("/a",))], None, b""),
    (VIEW, [Filter("url", "prefix", ("/a",)), Filter("status", "is", (1,))], None, b"\x06/a"),
    (VIEW, [Filter("url", "is", (None,)), Filter("status", "is", (1,))], None, pack_key((None, 1))),
    (VIEW, [Filter("url", "is", ("/a", None))], None, b""),
    (VIEW, [Filter("url", "prefix", ("",))], None, b"\x06"),
    # What two filters of one key leave over.
    (URL_LAST, [Filter("status", "is", (1,)), Filter("url", "is", ("/a", "/b")), Filter("url", "not", ("/a",))],
     [(1, "/b")], pack_key((1, "/b"))),
    (URL_LAST, [Filter("status", "is", (1,)), Filter("url", "is", ("/a", "x", None)), Filter("url", "prefix", ("/",))],
     [(1, "/a")], pack_key((1, "/a"))),
    (URL_LAST, [Filter("url", "is", ("/a",)), Filter("url", "not", ("/a",))], [], b""),
]  # fmt: skip


@pytest.mark.parametrize(("view", "filters", "keys", "prefix"), EXAMPLES, ids=[str(each[1]) for each in EXAMPLES])
def test_keys_are_listed_where_all_are_fixed_and_else_begin_with_what_is(
    view: View, filters: list[Filter], keys: list[tuple[Any, ...]] | None, prefix: bytes
) -> None:
    found = select_keys(view, filters, MOST)
    assert (None if found.keys is None else [*map(unpack_key, found.keys)]) == keys
    assert found.prefix == prefix


def test_too_many_keys_are_not_listed_but_scanned() -> None:
    many = [Filter("status", "is", tuple(range(10))), Filter("url", "is", tuple("abcdef"))]
    assert select_keys(URL_LAST, many, 59).keys is None
    assert len(select_keys(URL_LAST, many, 60).keys or ()) == 60
    assert select_keys(URL_LAST, many, 59).prefix == pack_key((0,))[:-1]
    assert select_keys(URL_LAST, many, 59).matches((9, "f"))
