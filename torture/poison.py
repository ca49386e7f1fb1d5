"""Poison: records that are no events, one of each kind that was ever seen or feared, for the load to strew in.

Most are poison for every source; the others are values that no field of a type can hold, for the fields of one source.
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace

from views.field_types import FieldType
from views.source import Source

Headers = tuple[tuple[str, bytes | None], ...]
FORGED = "forged by the fault programme"
"""The reason of dead letters that the programme forges: they are about records that nobody sent."""


@dataclass(frozen=True)
class Poison:
    """An invalid record as it goes into Kafka."""

    name: str
    value: bytes | None
    reason: str
    """How the reason in its dead letter begins."""
    key: bytes | None = b"poison"
    headers: Headers = ()


NOT_JSON, NOT_UTF8, NOT_OBJECT = "not JSON", "not UTF-8", "not a JSON object"
SEVERAL, EMPTY, HALF_A_PAIR = "more than one JSON value", "empty", "half a surrogate pair, or a repeated key"
NO_TIME, OUT_OF_RANGE = "event_time is not timestamp", "event_time is not between"
EVENT = b'{"event_id":"p-1","event_time":"2026-05-01T12:00:00Z"}'

NOTHING = [
    Poison("tombstone", None, "no value (a tombstone)"),
    Poison("tombstone_without_key", None, "no value (a tombstone)", key=None),
    Poison("empty", b"", EMPTY),
    Poison("empty_without_key", b"", EMPTY, key=None),
    Poison("blank", b"   ", EMPTY),
    Poison("line_ends", b"\r\n\r\n", EMPTY),
    Poison("null", b"null", EMPTY),
]

BROKEN_UTF8 = [
    Poison("byte_ff", b"\xff\xfe\xfd", NOT_UTF8),
    Poison("latin_1_text", '{"event_id":"café"}'.encode("latin-1"), NOT_UTF8),
    Poison("utf8_cut_in_a_character", b'{"event_id":"caf\xc3', NOT_UTF8),
    Poison("overlong_slash", b'{"event_id":"\xc0\xaf"}', NOT_UTF8),
    Poison("encoded_surrogate", b'{"event_id":"\xed\xa0\x80"}', NOT_UTF8),
    Poison("encoded_pair_of_surrogates", b'{"event_id":"\xed\xa0\xbd\xed\xb8\x80"}', NOT_UTF8),
    Poison("beyond_unicode", b'{"event_id":"\xf5\x80\x80\x80"}', NOT_UTF8),
    Poison("lone_continuation_byte", b'{"event_id":"\x80"}', NOT_UTF8),
    Poison("utf16_with_mark", '{"event_id":"a"}'.encode("utf-16"), NOT_UTF8),
    Poison("gzip", gzip.compress(EVENT, mtime=0), NOT_UTF8),
    Poison("picture", b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR", NOT_UTF8),
    Poison("utf8_broken_key_and_headers", b"\xff", NOT_UTF8, key=b"\xff\xfe", headers=(("x", b"\xff"), ("y", None))),
]

CUT_SHORT = [
    Poison("cut_after_brace", b"{", NOT_JSON),
    Poison("cut_in_name", b'{"event_', NOT_JSON),
    Poison("cut_after_name", b'{"event_id"', NOT_JSON),
    Poison("cut_after_colon", b'{"event_id":', NOT_JSON),
    Poison("cut_in_string", b'{"event_id":"p-1', NOT_JSON),
    Poison("cut_in_escape", b'{"event_id":"p-1\\', NOT_JSON),
    Poison("cut_in_literal", b'{"x":tru', NOT_JSON),
    Poison("cut_before_brace", EVENT[:-1], NOT_JSON),
    Poison("cut_at_half", EVENT[: len(EVENT) // 2], NOT_JSON),
]

BAD_GRAMMAR = [
    Poison("trailing_comma", b'{"event_id":"a",}', NOT_JSON),
    Poison("leading_comma", b'{,"event_id":"a"}', NOT_JSON),
    Poison("no_comma", b'{"event_id":"a" "x":1}', NOT_JSON),
    Poison("no_colon", b'{"event_id" "a"}', NOT_JSON),
    Poison("single_quotes", b"{'event_id':'a'}", NOT_JSON),
    Poison("bare_name", b'{event_id:"a"}', NOT_JSON),
    Poison("number_as_name", b'{1:"a"}', NOT_JSON),
    Poison("line_comment", b'// comment\n{"event_id":"a"}', NOT_JSON),
    Poison("block_comment", b'{"event_id":/* who */"a"}', NOT_JSON),
    Poison("hash_comment", b'# comment\n{"event_id":"a"}', NOT_JSON),
    Poison("python_literals", b"{'x': None, 'y': True}", NOT_JSON),
    Poison("undefined", b'{"x":undefined}', NOT_JSON),
    Poison("nan", b'{"x":NaN}', NOT_JSON),
    Poison("infinity", b'{"x":Infinity}', NOT_JSON),
    Poison("minus_infinity", b'{"x":-Infinity}', NOT_JSON),
    Poison("hexadecimal", b'{"x":0x1F}', NOT_JSON),
    Poison("leading_zero", b'{"x":007}', NOT_JSON),
    Poison("leading_plus", b'{"x":+1}', NOT_JSON),
    Poison("no_digit_before_point", b'{"x":.5}', NOT_JSON),
    Poison("no_digit_after_point", b'{"x":5.}', NOT_JSON),
    Poison("no_digit_in_exponent", b'{"x":1e}', NOT_JSON),
    Poison("unknown_escape", b'{"event_id":"\\x41"}', NOT_JSON),
    Poison("short_escape", b'{"event_id":"\\u12"}', NOT_JSON),
    Poison("tab_in_string", b'{"event_id":"a\tb"}', NOT_JSON),
    Poison("line_end_in_string", b'{"event_id":"a\nb"}', NOT_JSON),
    Poison("nul_in_string", b'{"event_id":"a\x00b"}', NOT_JSON),
    Poison("mismatched_brackets", b'{"x":[1}', NOT_JSON),
]

NOT_FOR_US = [
    Poison("byte_order_mark", b"\xef\xbb\xbf" + EVENT, NOT_JSON),
    Poison("leading_nul", b"\x00" + EVENT, NOT_JSON),
    Poison("utf16_without_mark", '{"event_id":"a"}'.encode("utf-16-be"), NOT_JSON),
    Poison("schema_registry_frame", struct.pack(">bI", 0, 7) + b"\x02\x06abc", NOT_JSON),
    Poison("xml", b"<event><id>a</id></event>", NOT_JSON),
    Poison("yaml", b"event_id: a\nname: page_view\n", NOT_JSON),
    Poison("form", b"event_id=a&name=page_view", NOT_JSON),
    Poison("csv", b"event_id,name\na,page_view\n", NOT_JSON),
    Poison("log_line", b'127.0.0.1 - - [01/May/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 5', NOT_JSON),
    Poison("callback", b'callback({"event_id":"a"})', NOT_JSON),
    Poison("sql", b"'; DROP TABLE events; --", NOT_JSON),
    Poison("script", b"<script>alert(1)</script>", NOT_JSON),
]

NOT_ONE_OBJECT = [
    Poison("array", b"[]", NOT_OBJECT),
    Poison("array_of_events", b"[" + EVENT + b"]", NOT_OBJECT),
    Poison("number", b"42", NOT_OBJECT),
    Poison("text", b'"text"', NOT_OBJECT),
    Poison("true", b"true", NOT_OBJECT),
    Poison("event_in_a_string", b'"{\\"event_id\\":\\"a\\"}"', NOT_OBJECT),
    Poison("two_objects", EVENT + EVENT, SEVERAL),
    Poison("two_lines", EVENT + b"\n" + EVENT + b"\n", SEVERAL),
    Poison("list_without_brackets", EVENT + b"," + EVENT, SEVERAL),
    Poison("words_after", EVENT + b" more", SEVERAL),
    Poison("nul_after", EVENT + b"\x00", SEVERAL),
    Poison("brace_after", EVENT + b"}", SEVERAL),
]

TOO_MUCH = [
    Poison("nested_arrays", b'{"a":' + b"[" * 1200 + b"]" * 1200 + b"}", NOT_JSON),
    Poison("nested_objects", b'{"a":' * 1200 + b"1" + b"}" * 1200, NOT_JSON),
    Poison("number_of_1500_digits", b'{"x":' + b"9" * 1500 + b"}", NOT_JSON),
    Poison("name_of_60000_letters", b'{"' + b"n" * 60_000 + b'":1}', NOT_JSON),
    Poison("long_id", b'{"event_id":"' + b"x" * 513 + b'"}', "event_id is longer than 512 characters"),
    Poison("nested_arrays_never_closed", b"[" * 100_000, NOT_JSON),
]

HALF_PAIRS = [
    Poison("lone_high_surrogate", b'{"event_id":"\\ud800"}', HALF_A_PAIR),
    Poison("lone_low_surrogate", b'{"event_id":"\\udc00"}', HALF_A_PAIR),
    Poison("pair_the_wrong_way_round", b'{"event_id":"\\ude00\\ud83d"}', HALF_A_PAIR),
    Poison("lone_surrogate_in_name", b'{"\\uD800":1}', HALF_A_PAIR),
    Poison("repeated_key_beside_a_pair", b'{"event_id":"\\ud83d\\ude00","event_id":"b"}', HALF_A_PAIR),
]

TIMES = [
    Poison("time_garbage", b'{"event_time":"yesterday"}', NO_TIME),
    Poison("time_30_february", b'{"event_time":"2026-02-30T00:00:00Z"}', NO_TIME),
    Poison("time_month_13", b'{"event_time":"2026-13-01T00:00:00Z"}', NO_TIME),
    Poison("time_hour_25", b'{"event_time":"2026-05-01T25:00:00Z"}', NO_TIME),
    Poison("time_true", b'{"event_time":true}', NO_TIME),
    Poison("time_array", b'{"event_time":["2026-05-01T12:00:00Z"]}', NO_TIME),
    Poison("time_object", b'{"event_time":{"at":"2026-05-01T12:00:00Z"}}', NO_TIME),
    Poison("time_in_milliseconds", b'{"event_time":1700000000000}', OUT_OF_RANGE),
    Poison("time_before_1970", b'{"event_time":"1969-12-31T23:59:59Z"}', OUT_OF_RANGE),
    Poison("time_in_2200", b'{"event_time":"2200-01-01T00:00:00Z"}', OUT_OF_RANGE),
    Poison("time_in_the_year_0001", b'{"event_time":"0001-01-01T00:00:00Z"}', OUT_OF_RANGE),
    Poison("time_in_the_year_12026", b'{"event_time":"12026-03-01T00:00:00Z"}', OUT_OF_RANGE),
    Poison("time_negative", b'{"event_time":-5}', OUT_OF_RANGE),
]


FOR_ALL = [
    *NOTHING,
    *BROKEN_UTF8,
    *CUT_SHORT,
    *BAD_GRAMMAR,
    *NOT_FOR_US,
    *NOT_ONE_OBJECT,
    *TOO_MUCH,
    *HALF_PAIRS,
    *TIMES,
]

WRONG_VALUES: dict[str, list[tuple[str, bytes, str]]] = {
    "double": [
        ("text", b'"1.5"', "is not double"),
        ("true", b"true", "is not double"),
        ("array", b"[1.5]", "is not double"),
        ("object", b"{}", "is not double"),
        ("too_large", b"1e400", "is too large for its type"),
        ("too_small", b"-1e400", "is too large for its type"),
    ],
    "int": [
        ("text", b'"200"', "is not int"),
        ("point", b"1.0", "is not int"),
        ("exponent", b"1e3", "is not int"),
        ("too_large", b"2147483648", "is not int"),
        ("far_too_large", b"1e400", "is not int"),
        ("false", b"false", "is not int"),
        ("array", b"[1]", "is not int"),
    ],
    "bigint": [("too_large", b"9223372036854775808", "is not bigint"), ("text", b'"1"', "is not bigint")],
    "boolean": [
        ("number", b"1", "is not boolean"),
        ("text", b'"true"', "is not boolean"),
        ("object", b"{}", "is not boolean"),
    ],
    "float": [("too_large", b"1e39", "is too large for its type"), ("text", b'"1"', "is not float")],
    "date": [("garbage", b'"tomorrow"', "is not date"), ("after_9999", b'"12026-03-01"', "is after the year 9999")],
    "struct": [
        ("array", b"[1]", "is not an object"),
        ("text", b'"x"', "is not an object"),
        ("number", b"7", "is not an object"),
    ],
}
"""What no field of a type can hold: what it is called, its JSON, and what is said of the field."""


def poison_for(source: Source) -> list[Poison]:
    """Every kind that is poison for this source: what is for all, and wrong values for one field of each type."""
    fields: dict[str, str] = {}
    for path, kind in _paths(FieldType("struct", fields=source.schema)):
        if path not in (source.id_field, source.time_field):
            fields.setdefault(kind, path)
    wrong = [
        Poison(f"{kind}_as_{name}", _nested(path, json), f"{path} {reason}")
        for kind, path in fields.items()
        for name, json, reason in WRONG_VALUES.get(kind, [])
    ]
    return [_named_as_in(source, each) for each in FOR_ALL] + wrong


def _paths(type_: FieldType, above: str = "") -> Iterator[tuple[str, str]]:
    """Each field's path and kind: `("properties", "struct"), ("properties.ms", "double")`."""
    for field in type_.fields:
        yield f"{above}{field.name}", field.type.kind
        yield from _paths(field.type, f"{above}{field.name}.")


def _nested(path: str, json: bytes) -> bytes:
    r"""`properties.ms`, `true` -> `{"properties":{"ms":true}}`."""
    name, _, rest = path.partition(".")
    return b'{"%s":%s}' % (name.encode(), _nested(rest, json) if rest else json)


def _named_as_in(source: Source, poison: Poison) -> Poison:
    """With the names that the source has for the id and the time."""
    value, reason = poison.value, poison.reason
    for ours, theirs in (("event_id", source.id_field), ("event_time", source.time_field)):
        value = value.replace(f'"{ours}"'.encode(), f'"{theirs}"'.encode()) if value is not None else None
        reason = reason.replace(ours, theirs)
    return replace(poison, value=value, reason=reason)
