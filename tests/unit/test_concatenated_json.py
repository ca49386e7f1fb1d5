"""A stream of JSON objects is split into whole ones, wherever its bytes are cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master_dataset.collector.kafka_rest.concatenated_json import JsonObjects

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=12) | st.sampled_from(
    ['"', "\\", '\\"', "{}", "}{"]
)
values = st.recursive(
    texts | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
objects = st.lists(st.dictionaries(texts, values, max_size=4), max_size=5)


@given(objects, st.sampled_from(["", " ", "\n", " \r\n\t"]), st.booleans(), st.data())
def test_objects_come_out_whole_however_they_are_cut(
    given_objects: list[object], between: str, is_ascii: bool, data: st.DataObject
) -> None:
    stream = between.join(json.dumps(each, ensure_ascii=is_ascii) for each in given_objects).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    splitter = JsonObjects()
    found = [
        each
        for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)
        for each in splitter.feed(stream[begin:end])
    ]
    assert list(map(json.loads, found)) == given_objects
    assert (splitter.held, splitter.is_broken) == (0, False)


@given(objects)
def test_one_byte_at_a_time(given_objects: list[object]) -> None:
    splitter = JsonObjects()
    stream = "".join(map(json.dumps, given_objects)).encode()
    found = [each for byte in stream for each in splitter.feed(bytes([byte]))]
    assert list(map(json.loads, found)) == given_objects


@pytest.mark.parametrize("stream", ['{"a":1},{"a":2}', '{"a":1}]', '{"a":1} 5 {}', '{"a":1}"x"', '{"a":1}}'])
def test_what_is_no_object_ends_it_after_those_before(stream: str) -> None:
    splitter = JsonObjects()
    assert splitter.feed(stream.encode()) == [b'{"a":1}']
    assert splitter.is_broken
    assert splitter.feed(b"{}") == []


@pytest.mark.parametrize("stream", ['{"a": "x', '{"a": "\\', '{"a": {"b": 1}', "{"])
def test_an_incomplete_object_is_held(stream: str) -> None:
    splitter = JsonObjects()
    assert splitter.feed(b"{} " + stream.encode()) == [b"{}"]
    assert splitter.held == len(stream)
