"""Events on their way in: strict JSON, the types of a source, and what Kafka gets."""

from __future__ import annotations

import json
import math
import re
import string
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from master_dataset.events.envelope import InvalidEvent, compile_validator, new_event_id, parse_json, prepare_event
from tests.tiers import times
from views.reading import typed_event
from views.source import Source
from views.strict_json import dump_json, parse_list_with_texts, parse_with_text

ALL_TYPES = Source(
    "all_types",
    fields="""
        event_id string, event_time timestamp, s string, b boolean, i8 tinyint, i16 smallint, i32 int, i64 bigint,
        f float, d double, n decimal(5,2), big decimal(38,18), day date, at timestamp, list array<int>,
        counts map<string,bigint>, deep struct<x: array<struct<y: int>>>
    """,
)
validate = compile_validator(ALL_TYPES)

text = st.text(st.characters(exclude_categories=("Cs",)))
scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
)
json_values = st.recursive(
    scalars | text, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(text, inner, max_size=5), max_leaves=30
)


# ---- JSON --------------------------------------------------------------------


@given(json_values)
@example({"a": '"', "\\": '\\"'})
@example({"\\u0022": 1, '"': 2})
def test_every_json_value_is_read_as_the_standard_library_reads_it(value: Any) -> None:
    for data in (
        orjson.dumps(value),
        json.dumps(value).encode(),
        json.dumps(value, indent=2, ensure_ascii=False).encode(),
    ):
        assert parse_json(data) == value


NOT_PLAIN = (
    b'{"a":1,"a":1}',
    b'{"n":1e400}',
    b'{"n":0.10000000000000000001}',
    b'{"n":18446744073709551616}',
    b'{"n":1.50}',
    rb'{"a":"\u0022","a":"\u00e9"}',
    b'{"a":1}x',
    b'"\xff"',
    b"[" * 63 + b"]" * 63,
    b"[" * 64 + b"]" * 64,
    b"",
)
written = st.sampled_from(NOT_PLAIN) | st.builds(
    lambda value, form: form(value),
    json_values,
    st.sampled_from(
        (orjson.dumps, lambda value: json.dumps(value).encode(), lambda value: json.dumps(value, indent=1).encode())
    ),
)


def read_or_refused(read: Callable[[bytes], Any], data: bytes) -> Any:
    try:
        return read(data)
    except InvalidEvent as error:
        return "refused", error.where, error.reason


@given(written)
def test_a_text_beside_a_value_is_what_would_be_written_for_it(data: bytes) -> None:
    alone, both = read_or_refused(parse_json, data), read_or_refused(parse_with_text, data)
    if both[0] == "refused":
        assert both == alone
    else:
        assert both[0] == alone
        assert both[1] in (None, dump_json(alone))


@given(st.lists(written, max_size=5), st.sampled_from((b",", b" , ")), st.integers(0, 4))
def test_texts_beside_a_list_are_what_would_be_written_for_its_elements(
    parts: list[bytes], comma: bytes, max_texts: int
) -> None:
    for data in (b"[" + comma.join(parts) + b"]", b"".join(parts)):
        alone = read_or_refused(parse_json, data)
        both = read_or_refused(lambda each: parse_list_with_texts(each, max_texts), data)
        if isinstance(both, tuple) and both[0] == "refused":
            assert both == alone
            continue
        values, texts = both
        assert values == (alone if isinstance(alone, list) else [alone])
        assert len(texts) == len(values)
        assert all(text is None or text == dump_json(value) for value, text in zip(values, texts, strict=True))


def test_an_array_as_producers_write_it_comes_with_its_texts() -> None:
    data = b'[{"event_id":"a","d":1.5}, {"event_id":"b"}]'
    assert parse_list_with_texts(data, 2)[1] == [b'{"event_id":"a","d":1.5}', b'{"event_id":"b"}']
    assert parse_list_with_texts(data, 1)[1] == [None, None]
    assert parse_with_text(b'{"event_id": "a"}') == ({"event_id": "a"}, b'{"event_id":"a"}')


@given(st.lists(st.tuples(st.text(string.ascii_letters + '"\\ é', max_size=3), json_values), min_size=1, max_size=6))
def test_a_key_that_is_given_twice_is_always_found(pairs: list[tuple[str, Any]]) -> None:
    for escaped in (True, False):
        inside = ",".join(
            f"{json.dumps(key, ensure_ascii=escaped)}:{json.dumps(value, ensure_ascii=escaped)}" for key, value in pairs
        )
        data = f"[{{{inside}}}]".encode()
        if len(dict(pairs)) == len(pairs):
            assert parse_json(data) == [dict(pairs)]
        else:
            with pytest.raises(InvalidEvent, match="twice"):
                parse_json(data)


def test_an_escaped_quote_does_not_hide_a_key_that_is_given_twice() -> None:
    with pytest.raises(InvalidEvent, match="twice"):
        parse_json(rb'{"a":1,"a":1,"b":"\u0022\u0022"}')


def test_a_repeated_key_among_very_many_is_found_in_one_pass() -> None:
    """Comparing each with each, this takes minutes. The deadline leaves room for a busy machine."""
    keys = [f'"k{number}":1' for number in range(60_000)]
    data = "{" + ",".join([*keys, '"k59999":1']) + "}"
    began_s = time.process_time()
    with pytest.raises(InvalidEvent, match="k59999: this key is given twice"):
        parse_json(data.encode())
    assert time.process_time() - began_s < 5


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'{"ip":"1.2.3.4.5.6.7.8.9.10","x":1.50}', {"ip": "1.2.3.4.5.6.7.8.9.10", "x": 1.5}),
        (b'{"ip": "10.0.0.1.10.0.0.1.10.0.0.1", "x": 1e0}', {"ip": "10.0.0.1.10.0.0.1.10.0.0.1", "x": 1.0}),
        (b'["1...............................", 1.50]', ["1...............................", 1.5]),
        (
            b'["1.2.3.4.5.6.7.8.9.10", 0.1000000000000000055]',
            ["1.2.3.4.5.6.7.8.9.10", Decimal("0.1000000000000000055")],
        ),
        (b'["1234567890123456e99999", 1.50]', ["1234567890123456e99999", 1.5]),
    ],
)
def test_digits_in_a_string_need_not_be_a_number(data: bytes, expected: Any) -> None:
    assert parse_json(data) == expected


digit_like = st.text("0123456789.eE+-", min_size=1, max_size=40)


@given(digit_like, digit_like)
@example("1.2.3.4.5.6.7.8.9.10", "1.50")
@example("", "1e-99999999999999999999")
@settings(max_examples=times(120, 5000))
def test_reading_ends_in_a_value_or_invalid_event_however_the_digits_stand(quoted: str, bare: str) -> None:
    with suppress(InvalidEvent):
        parse_json(f'{{"a": "{quoted}", "b": {bare}}}'.encode())


@given(st.decimals(allow_nan=False, allow_infinity=False))
def test_numbers_keep_every_digit(number: Decimal) -> None:
    if number and not -300 < number.adjusted() < 300:
        return
    data = f'{{"n": {number}}}'.encode()
    kept = parse_json(data)["n"]
    assert Decimal(repr(kept) if isinstance(kept, float) else kept) == number
    stored = json.loads(dump_json(parse_json(data)), parse_float=Decimal, parse_int=Decimal)["n"]
    assert stored == number


@pytest.mark.parametrize(
    ("data", "where", "reason"),
    [
        (b"", "", "nothing"),
        (b" \n", "", "nothing"),
        (b"\xef\xbb\xbf{}", "line 1 column 1", "byte order mark"),
        (b'{"a":"\xff"}', "byte 6", "not valid UTF-8"),
        (b'"\xed\xa0\x80"', "byte 1", "not valid UTF-8"),
        (rb'"\ud800"', "line 1 column 2", "surrogate"),
        (rb'"\udc00\ud800"', "line 1 column 2", "surrogate"),
        (b"NaN", "line 1 column 1", "not JSON"),
        (b"[1,Infinity]", "line 1 column 4", "not JSON"),
        (b"-Infinity", "line 1", "not JSON"),
        (b"1e999", "line 1 column 1", "infinity"),
        (b"{} {}", "line 1 column 4", "after document"),
        (b"{}\n[", "line 2 column 1", "after document"),
        (b"{'a':1}", "line 1 column 2", "not JSON"),
        (b'{"a":1,}', "line 1 column 7", "trailing comma"),
        (b"01", "line 1 column 1", "leading zero"),
        (b'"a\nb"', "line 1 column 3", "control character"),
        (b"0." + b"1" * 2000, "", "2002 characters"),
        (b"1e-99999999999999999999", "", "exponent"),
    ],
)
def test_what_is_not_strict_json_is_refused_with_place_and_reason(data: bytes, where: str, reason: str) -> None:
    with pytest.raises(InvalidEvent) as refused:
        parse_json(data)
    assert refused.value.where.startswith(where)
    assert reason in refused.value.reason


@pytest.mark.parametrize("depth", [1, 63, 64, 65, 500, 100_000])
def test_nesting_is_bounded(depth: int) -> None:
    for data in (b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth):
        if depth <= 64:
            parse_json(data)
        else:
            with pytest.raises(InvalidEvent, match=r"deep|depth"):
                parse_json(data)


def test_brackets_in_strings_are_no_nesting() -> None:
    assert parse_json(b'["' + b"[{" * 1000 + b'"]') == ["[{" * 1000]


# ---- types -------------------------------------------------------------------

GOOD = [
    {},
    {"unknown": {"anything": [1, None]}},
    {"s": "x", "b": True, "i8": -128, "i16": 32767, "i32": -(2**31), "i64": 2**63 - 1},
    {"f": 1, "d": 1e308, "n": 999.99, "big": 12345678901234567890},
    {"n": -0.01},
    {"n": 1e2},
    {"n": 0},
    {"n": "0"},
    {"n": "-12.30"},
    {"n": "999.990"},
    {"big": "12345678901234567890.000000000000000001"},
    {"day": "2024-02-29", "at": "0001-01-01T00:00:00"},
    {"at": "2026-01-01T00:00:00.123456-18:00"},
    {"event_time": "1970-01-01T00:00:00Z"},
    {"event_time": "2199-12-31T23:59:59.999999Z"},
    {"event_time": "1970-01-01T01:00:00+01:00"},
    {"event_id": "x" * 512},
    {"list": [], "counts": {}, "deep": {}},
    {"list": [1, None], "counts": {"a": None, "": 1}, "deep": {"x": [{"y": 1}, None, {}]}},
    dict.fromkeys(("event_id", "event_time", "s", "i32", "n", "list", "deep")),
]
BAD = [
    ([], "", "object"),
    ("x", "", "object"),
    (None, "", "object"),
    ({"s": 1}, "s", "string"),
    ({"s": "a\0b"}, "s", "U+0000"),
    ({"b": 0}, "b", "true or false"),
    ({"i32": True}, "i32", "integer"),
    ({"i32": 1.0}, "i32", "integer"),
    ({"i32": "1"}, "i32", "integer"),
    ({"i8": 128}, "i8", "-128 to 127"),
    ({"i64": 2**63}, "i64", "bigint"),
    ({"i64": Decimal(10**30)}, "i64", "integer"),
    ({"f": 1e39}, "f", "32 bits"),
    ({"d": "1"}, "d", "number"),
    ({"d": True}, "d", "number"),
    ({"n": 1000}, "n", "decimal(5,2)"),
    ({"n": 0.001}, "n", "decimal(5,2)"),
    *(({"n": text}, "n", "number") for text in ("", " 1", "+1", "1,5", "1e2", "1.", ".5", "x", "１", "1" * 77, "NaN")),
    *(({"n": text}, "n", "decimal(5,2)") for text in ("1000", "0.001")),
    ({"big": Decimal("1.1234567890123456789")}, "big", "decimal(38,18)"),
    ({"day": "2026-02-30"}, "day", "date"),
    ({"day": "20260101"}, "day", "date"),
    ({"day": "2026-01-01 "}, "day", "date"),
    ({"day": "２０２６-01-01"}, "day", "date"),
    ({"at": "2026-01-01 00:00:00"}, "at", "time"),
    ({"at": "2026-01-01"}, "at", "time"),
    ({"at": "2026-01-01T24:00:00"}, "at", "time"),
    ({"at": "2026-01-01T23:59:60Z"}, "at", "time"),
    ({"at": "2026-01-01T00:00:00.1234567Z"}, "at", "time"),
    ({"at": "2026-01-01T00:00:00.Z"}, "at", "time"),
    ({"at": "2026-01-01T00:00:00+18:01"}, "at", "time"),
    ({"at": "2026-01-01T00:00:00+0100"}, "at", "time"),
    ({"at": "2026-01-01T00:00:00Z\n"}, "at", "time"),
    ({"at": 1767225600}, "at", "time"),
    ({"event_time": "1969-12-31T23:59:59.999999Z"}, "event_time", "1970 to 2199"),
    ({"event_time": "1970-01-01T00:00:00+00:01"}, "event_time", "1970 to 2199"),
    ({"event_time": "2200-01-01T00:00:00Z"}, "event_time", "1970 to 2199"),
    ({"event_id": ""}, "event_id", "1 to 512"),
    ({"event_id": "x" * 513}, "event_id", "1 to 512"),
    ({"event_id": 5}, "event_id", "string"),
    ({"list": {}}, "list", "array"),
    ({"list": [1, "2"]}, "list[1]", "integer"),
    ({"counts": []}, "counts", "object"),
    ({"counts": {"a": 1, "b": 1.5}}, "counts.b", "integer"),
    ({"counts": {"\0": 1}}, "counts.\0", "U+0000"),
    ({"deep": []}, "deep", "object"),
    ({"deep": {"x": [{}, {"y": "1"}]}}, "deep.x[1].y", "integer"),
]


@pytest.mark.parametrize("event", GOOD)
def test_valid_events_are_accepted(event: dict[str, Any]) -> None:
    validate(event)


@pytest.mark.parametrize(("event", "where", "reason"), BAD)
def test_invalid_events_are_refused_with_path_and_reason(event: Any, where: str, reason: str) -> None:
    with pytest.raises(InvalidEvent) as refused:
        validate(event)
    assert refused.value.where == where
    assert reason in refused.value.reason


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        ("1e10000000", "infinity"),
        ('"1e10000000"', "number"),
        ('"1e-10000000"', "number"),
        ('"' + "1" * 100_000 + '"', "number"),
        ("1e-10000000", "decimal(5,2)"),
        ("-1.5E-999999999999", "decimal(5,2)"),
        ("9" * 900 + "e-10000000", "decimal(5,2)"),
        ("0e-10000000", ""),
        ("0.00E+10000000", ""),
        ("1e-0000000002", ""),
    ],
)
def test_a_decimal_with_a_huge_exponent_is_judged_by_its_value(number: str, reason: str) -> None:
    """None of them is written out: the longest would be a million megabytes of digits."""
    data = f'{{"n": {number}, "s": "71e12345"}}'.encode()
    if reason:
        with pytest.raises(InvalidEvent, match=re.escape(reason)):
            validate(parse_json(data))
        return
    event = parse_json(data)
    validate(event)
    assert abs(typed_event(ALL_TYPES.schema, event)["n"]) <= Decimal("0.01")
    assert len(prepare_event(ALL_TYPES, {"event_id": "e", **event}).value) < 100


@given(json_values)
@settings(max_examples=times(100, 3000))
def test_validation_ends_in_yes_or_invalid_event_whatever_it_is_given(value: Any) -> None:
    fields = [field.name for field in ALL_TYPES.schema]
    for event in (value, dict.fromkeys(fields, value)):
        with suppress(InvalidEvent):
            validate(event)


@given(st.datetimes(), st.integers(0, 6), st.sampled_from(["", "Z", "+00:00", "-11:30", "+18:00"]))
def test_every_time_in_iso_form_is_accepted(moment: Any, digits: int, zone: str) -> None:
    fraction = f".{moment.microsecond:06}"[: digits + 1] if digits else ""
    validate({"at": moment.strftime("%Y").zfill(4) + moment.strftime("-%m-%dT%H:%M:%S") + fraction + zone})


@given(st.text(string.digits + "-T:Z+. ", max_size=35))
def test_text_that_is_accepted_as_a_time_is_one(given_text: str) -> None:
    from datetime import datetime

    try:
        validate({"at": given_text})
    except InvalidEvent:
        return
    assert datetime.fromisoformat(given_text)


@given(st.decimals(-(10**4), 10**4, places=4))
def test_a_decimal_is_accepted_when_it_fits_exactly(number: Decimal) -> None:
    fits = number == number.quantize(Decimal("0.01")) and abs(number) < 1000
    for value in (number, float(number)):
        try:
            validate({"n": value})
        except InvalidEvent:
            assert not fits
        else:
            assert fits


# ---- what Kafka gets ---------------------------------------------------------


@given(st.dictionaries(text.filter(lambda name: name != "event_id"), json_values, max_size=5))
def test_a_prepared_event_says_what_was_sent(event: dict[str, Any]) -> None:
    prepared = prepare_event(ALL_TYPES, {"event_id": "e1", **event})
    assert json.loads(prepared.value) == {"event_id": "e1", **event}
    assert (prepared.key, prepared.event_id) == (b"e1", "e1")


@pytest.mark.parametrize("event", [{}, {"event_id": None}])
def test_an_event_without_id_gets_one_and_is_not_changed_in_place(event: dict[str, Any]) -> None:
    before = dict(event)
    prepared = prepare_event(ALL_TYPES, event)
    assert json.loads(prepared.value)["event_id"] == prepared.event_id
    assert prepared.key == prepared.event_id.encode()
    assert event == before
    validate(json.loads(prepared.value))


def test_a_given_key_is_kept() -> None:
    assert prepare_event(ALL_TYPES, {"event_id": "e"}, b"user-1").key == b"user-1"


KEYED = Source("shop", "event_id string, event_time timestamp, user_id string, number bigint", key_field="user_id")


@pytest.mark.parametrize(
    ("key_field", "event", "key"),
    [
        ("user_id", {"event_id": "e", "user_id": "ä-1"}, "ä-1"),
        ("user_id", {"event_id": "e", "user_id": ""}, "e"),
        ("user_id", {"event_id": "e", "user_id": None}, "e"),
        ("user_id", {"event_id": "e"}, "e"),
        ("number", {"event_id": "e", "number": 0}, "0"),
        ("number", {"event_id": "e", "number": -(2**63)}, str(-(2**63))),
        ("event_id", {"event_id": "e", "user_id": "u"}, "e"),
        ("", {"event_id": "e", "user_id": "u"}, "e"),
    ],
)
def test_the_key_is_the_field_that_the_source_names_else_the_id(
    key_field: str, event: dict[str, Any], key: str
) -> None:
    prepared = prepare_event(replace(KEYED, key_field=key_field), event)
    assert (prepared.key, prepared.event_id) == (key.encode(), "e")
    assert prepare_event(KEYED, event, b"given").key == b"given"


RENAMED = Source(
    "shop",
    "event_id string, event_time timestamp, user string",
    key_field="user",
    aliases={"user": ("user_id", "uid")},
)


@pytest.mark.parametrize(
    ("event", "key"),
    [
        ({"uid": "u7"}, "u7"),
        ({"uid": "u7", "user_id": "u8"}, "u8"),
        ({"uid": "u7", "user_id": None, "user": None}, "u7"),
        ({"uid": "u7", "user": ""}, "e"),
        ({"user": "u9", "uid": "u7"}, "u9"),
        ({"uid": None}, "e"),
        ({}, "e"),
    ],
)
def test_the_key_is_the_value_of_the_field_under_whatever_name_it_comes(event: dict[str, Any], key: str) -> None:
    assert prepare_event(RENAMED, {"event_id": "e", **event}).key == key.encode()


def test_an_event_without_id_and_without_its_key_field_is_keyed_by_the_id_that_it_gets() -> None:
    prepared = prepare_event(KEYED, {})
    assert prepared.key == prepared.event_id.encode()


def test_made_ids_are_uuids_that_differ_and_sort_by_time() -> None:
    import uuid

    made = [new_event_id() for _ in range(5000)]
    assert len(set(made)) == 5000
    assert all(uuid.UUID(one).version == 7 and uuid.UUID(one).variant == uuid.RFC_4122 for one in made)
    assert [one[:13] for one in made] == sorted(one[:13] for one in made)


def test_a_name_that_spark_would_not_read_is_refused() -> None:
    with pytest.raises(InvalidEvent, match="name"):
        prepare_event(ALL_TYPES, {"a": [{"n" * 50_001: 1}]})


def test_finite_is_what_json_can_say() -> None:
    with pytest.raises(TypeError):
        dump_json({"n": Decimal("NaN")})
    assert dump_json({"n": Decimal("1E+400")}) == b'{"n":1E+400}'
    assert math.isfinite(parse_json(b"1e308"))


RULES = Source(
    "rules",
    fields="""
        event_id string, event_time timestamp, user_id string NOT NULL, ms bigint DEFAULT 0,
        tries int NOT NULL DEFAULT 1, p struct<url: string NOT NULL, price: decimal(10,2) DEFAULT 9.99>
    """,
    aliases={"user_id": ("user", "uid"), "p": ("properties",), "p.url": ("uri",)},
)


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        ({"user_id": "a"}, ""),
        ({"user": "a"}, ""),
        ({"user_id": None, "uid": "a"}, ""),
        ({"user_id": "a", "tries": 2, "ms": None}, ""),
        ({"user_id": "a", "p": {"url": "/"}}, ""),
        ({"user_id": "a", "properties": {"uri": "/", "price": "1.50"}}, ""),
        ({"user_id": "a", "p": None}, ""),
        ({}, "user_id: it is required"),
        ({"user_id": None}, "user_id: it is required"),
        ({"user_id": "a", "uid": 5}, "uid: this should be a string"),
        ({"user_id": "a", "tries": None}, "tries: it is required"),
        ({"user_id": "a", "p": {}}, "p.url: it is required"),
        ({"user_id": "a", "properties": {"url": None}}, "properties.url: it is required"),
        ({"user_id": "a", "p": {"url": "/"}, "properties": {"uri": 3}}, "properties.uri: this should be a string"),
    ],
)
def test_required_fields_and_aliases_are_checked(event: dict[str, Any], problem: str) -> None:
    from master_dataset.events.field_checks import explaining_check

    for check in (compile_validator(RULES), explaining_check(RULES)):
        if problem:
            with pytest.raises(InvalidEvent) as refused:
                check(event)
            assert str(refused.value).startswith(problem)
        else:
            check(event)


# ---- the compiled validator and the explaining checks ------------------------

near = {
    "event_id": st.sampled_from(["e", "", "x" * 512, "x" * 513, "\0", 5]),
    "event_time": st.sampled_from(
        [
            "2026-01-01T00:00:00Z",
            "1970-12-31T00:00:00Z",
            "1969-12-31T23:00:00-01:00",
            "2199-12-31T00:00:00Z",
            "2026-02-30T00:00:00Z",
        ]
    ),
    "s": text | scalars,
    "b": scalars,
    "i8": st.sampled_from([127, 128, -128, -129, True, 1.0]),
    "i64": st.integers(-(2**64), 2**64),
    "f": st.sampled_from([1, 3.4028234663852886e38, 3.5e38, -3.5e38, "1", Decimal("1E+38")]),
    "d": scalars | st.just(Decimal("0.1")),
    "n": st.sampled_from([1, 999.99, 1000, 0.001, True, "1"]),
    "day": st.sampled_from(["2026-01-01", "2026-1-1", "2026-02-30", 5]),
    "at": st.sampled_from(
        ["2026-01-01T00:00:00", "2026-01-01T25:00:00", "2026-W01-1T00:00:00Z", "0000-01-01T00:00:00Z"]
    ),
    "list": st.lists(st.integers(-(2**32), 2**32) | st.none(), max_size=3) | text,
    "deep": st.fixed_dictionaries({}, optional={"x": st.lists(st.fixed_dictionaries({"y": scalars}), max_size=2)})
    | text,
}


@given(st.fixed_dictionaries({}, optional={name: st.none() | values for name, values in near.items()}))
@settings(max_examples=times(120, 5000))
def test_the_compiled_validator_and_the_explaining_checks_agree(event: dict[str, Any]) -> None:
    from master_dataset.events.field_checks import explaining_check
    from master_dataset.events.validator import _compile

    def verdict(check: Any) -> str:
        try:
            check(event)
        except InvalidEvent as error:
            return str(error)
        return "valid"

    assert verdict(validate) == verdict(explaining_check(ALL_TYPES))
    if verdict(validate) != "valid":
        with suppress(InvalidEvent, ValueError):
            assert not _compile(ALL_TYPES)(event)
