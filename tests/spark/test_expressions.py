"""Expressions mean in Spark what they mean in Python: every function, every cast, the edges, and random trees."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import functions as f

from views import functions
from views.errors import ExpressionError
from views.expressions import parse
from views.in_memory import Event
from views.on_spark.events import with_event
from views.sample_events import encode, generate
from views.source import Source
from views.typed_expression import TypedExpression
from views.types import CASTS
from views.view import event_scope

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SOURCE = Source(
    "everything",
    fields="""
        event_id string, event_time timestamp, text string, other string, tiny tinyint, n int, big bigint, more bigint,
        x double, y double, f float, price decimal(10,2), wide decimal(38,0), fine decimal(38,37), cents decimal(20,4),
        day date, at timestamp, flag boolean, sign boolean, tags array<string>, numbers array<int>, longs array<bigint>,
        weights array<double>, labels map<string,string>, counts map<string,int>,
        p struct<url: string, ms: double, inner: struct<deep: smallint>>, track array<struct<at: double, name: string>>
    """,
)
SCOPE = event_scope(SOURCE)
TEXTS = (
    "", " ", "  12  ", "+5", "-", "+", "--5", "1.5", "1e3", "１２", "12a", "007", "0x10", "\t7\n", "\x7f5\x00",
    "\u00a05", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809",
    "a", "A", "a,b,,c", ",", ",,", "aaa", "ß", "ΑΣ", "Ünï ✓", "😀x😀", "a%b_c\\d", "axb", "${spark.app.name}",
    "line\nend", " padded ", "it's",
)  # fmt: skip
LARGEST = 2**63 - 1
EDGES: dict[str, Sequence[Any]] = {
    "string": TEXTS,
    "tinyint": (0, 127, -128),
    "smallint": (0, 32767, -32768),
    "int": (0, 1, -1, 7, 2**31 - 1, -(2**31)),
    "bigint": (0, 1, -1, 2, 7, LARGEST, -LARGEST, -LARGEST - 1, 2**53 + 1, 2**32, -(2**31)),
    "double": (
        0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -0.5, -2.5, 0.1, 1.005, 2.675, 1e-9, 5e-324, 1.7976931348623157e308, 1e300,
        -1e300, 9.223372036854775807e18, -9.223372036854775808e18, 9.3e18, 9007199254740993.0, 0.49999999999999994,
        4503599627370495.5, 123456.789, 99999999.995, 99999999.994999,
    ),
    "float": (0.0, -0.0, 0.5, -1.5, 3.4028234663852886e38, 1.401298464324817e-45),
    "decimal(10,2)": tuple(map(Decimal, ("0.00", "0.01", "-0.01", "0.50", "-2.50", "99999999.99", "-99999999.99"))),
    "decimal(38,0)": tuple(map(Decimal, ("0", "1", "-1", "9" * 38, "-" + "9" * 38, "9223372036854775808", "5"))),
    "decimal(38,37)": tuple(map(Decimal, ("0." + "0" * 37, "9." + "9" * 37, "-9." + "9" * 37, "0." + "0" * 36 + "1"))),
    "decimal(20,4)": tuple(map(Decimal, ("0.0000", "0.0050", "-0.0050", "1.2345", "9" * 16 + ".9999", "-5.0000"))),
    "date": (date(1970, 1, 1), date(2024, 2, 29), date(1, 1, 1), date(9999, 12, 31), date(2026, 11, 15)),
    "timestamp": tuple(
        datetime(*parts, tzinfo=UTC)
        for parts in (
            (1970, 1, 1), (1969, 12, 31, 23, 59, 59, 999_999), (2024, 2, 29, 23, 59, 59, 1), (2, 3, 4, 5, 6, 7, 8),
            (9998, 12, 31, 23, 59, 59, 999_999), (2026, 11, 15, 12, 30),
        )
    ),
    "boolean": (True, False),
}  # fmt: skip
"""By type: zeros, limits, halves, and texts that are nearly numbers."""

BY_NAME = {
    "+": (
        "n + 1; big + more; x + y; n + x; price + 1; price + cents; price + n; big + 0.5; f + x; "
        "x + y + x + y - x; tiny + tiny; price + null; -0.0 + price"
    ),
    "-": "n - 1; big - more; x - y; price - cents; price - big; cents - 9999999999999999.9999; x - x; -n - n",
    "*": "n * 8; big * more; big * n; x * y; x * y * y; price * cents; price * 0; price * -1; n * 1.5; f * 2",
    "/": "n / 2; big / more; x / y; 1 / x; x / 0; x / 0.0; n / 2.5; 1 / (x * y); (x * y) / x; 1e308 * 10 / x",
    "%": "n % 2; big % more; big % -1; n % 0; -7 % n; mod(n, 3)",
    "negative": "-n; -big; -x; -price; -cast(wide as decimal(34,0)); -(x * y); negative(n)",
    "abs": "abs(n); abs(big); abs(x); abs(price); abs(cast(fine as decimal(34,33))); abs(-big); abs(x * y); abs(f)",
    "floor": "floor(x); floor(n); floor(x / 7); floor(f); floor(-x); floor(x * y)",
    "ceil": "ceil(x); ceil(n); ceil(x / 7); ceiling(x)",
    "round": "round(x); round(x, 2); round(x, 0); round(x, 15); round(n); round(n, 2); round(x / 3, 1); round(f, 3)",
    "sqrt": "sqrt(x); sqrt(n); sqrt(big); sqrt(x * x)",
    "=": (
        "n = 1; x = 0; x = -0.0; x = y; text = 'a'; text = other; price = 0.5; price = cents; big = x; "
        "flag = sign; day = date '2024-02-29'; at = timestamp '1970-01-01T00:00:00Z'; at = event_time; n = null; "
        r"text == ''; big = wide; text = '${spark.app.name}'; text = 'it\'s'; text = 'line\nend'; "
        r"text = 'a%b_c\\d'; x * y = x; tiny = n"
    ),
    "<>": "n <> 1; x != y; text <> other; flag <> true; price <> 0",
    "<": (
        "n < 1; x < y; text < other; price < cents; day < date '2024-02-29'; flag < sign; big < x; x < 0; "
        "at < event_time"
    ),
    "<=": "n <= 1; x <= y; text <= other; x <= -0.0",
    ">": "n > 1; x > y; text > other; x * y > 0; wide > big; text > ''",
    ">=": "n >= 1; x >= y; big >= 9223372036854775807; big >= -9223372036854775808; x >= 0",
    "<=>": "n <=> 1; n <=> null; x <=> y; text <=> other; x <=> -0.0; price <=> cents; null <=> null; flag <=> sign",
    "between": (
        "n between 0 and 7; x between -0.0 and y; text not between 'a' and 'b'; n between null and 5; "
        "price between 0 and 1"
    ),
    "in": (
        "n in (1, 7); n in (1, null); n not in (1, null); text in ('a', '', ','); x in (0, 0.5, 2.5); "
        "price in (0.5, 0.01, n); x in (0.0, 1e0, 2e0, 3e0, 4e0, 5e0, 6e0, 7e0, 8e0, 9e0, 1e1, 11e0, 12e0); "
        "n in (1,2,3,4,5,6,7,8,9,10,11,12,13,null); "
        "text in ('a','b','c','d','e','f','g','h','i','j','k','','${spark.app.name}'); "
        "day in (date '1970-01-01'); null in (n)"
    ),
    "is": (
        "n is null; n is not null; flag is true; flag is not false; flag is null; tags is null; p is null; "
        "(x / y) is null; x * y is null; null is null"
    ),
    "and": "flag and sign; flag and null; null and null; flag and n > 0 and x > 0",
    "or": "flag or sign; flag or null; n > 0 or flag or x > 0",
    "not": "not flag; !flag; not n > 1; not (flag and sign)",
    "if": (
        "if(flag, n, 0); if(flag, n, x); if(n > 1, 'many', text); if(flag, n); if(flag, null, text); if(flag, price, n)"
    ),
    "coalesce": (
        "coalesce(n, 0); coalesce(text, other, '?'); coalesce(x * y, -1); coalesce(n, x); nvl(n, 5); "
        "ifnull(price, 0); coalesce(flag); coalesce(null, day); coalesce(null, null)"
    ),
    "nullif": "nullif(text, ''); nullif(n, 0); nullif(x, 0); nullif(n, null); nullif(price, 0.5)",
    "greatest": (
        "greatest(n, 5); greatest(x, y); greatest(text, other); greatest(price, n); greatest(day, null); "
        "greatest(flag, sign)"
    ),
    "least": "least(n, 5); least(x, y, 0); least(text, other); least(at, event_time); least(big, more, 0)",
    "case": (
        "case when flag then n when sign then 2 else 3 end; case n when 1 then 'one' when 7 then 'seven' end; "
        "case when x > 0 then x * y else 0 end; case text when '' then null else text end; "
        "case when flag then price else n end"
    ),
    "lower": "lower(text); lower(concat(text, other)); lcase(text); lower(upper(text)); lower(upper('ß'))",
    "upper": "upper(text); upper('${spark.app.name}'); ucase(text); upper(lower(text))",
    "trim": "trim(text); length(trim(text))",
    "length": "length(text); length(''); length('ünï✓😀'); char_length(text); len(text)",
    "startswith": "startswith(text, 'a'); startswith(text, other); startswith(text, '')",
    "endswith": "endswith(text, 'x'); endswith(text, other); endswith(text, '')",
    "contains": "contains(text, ','); contains(text, other); contains(text, '')",
    "like": (
        r"text like 'a%'; text like '_'; text like '%'; text like ''; text like 'a\\%b\\_c\\\\d'; "
        "text like 'a%b_c%'; text not like '%x%'; text like '.*'; text like '%e_e%'; text like '__'; "
        r"text like '%\\%%'; text like '%a%b%c'; text like 'a%_%\\_%d'; text like '%😀%_😀'; text like '%\n%d'; "
        "text like '%${%p%}'"
    ),
    "concat": (
        "concat(text, other); text || '-' || other; concat(text); concat('a', 'b'); concat(text, '${spark.app.name}')"
    ),
    "substring": (
        "substring(text, 2); substring(text, 2, 1); substring(text, 0, 2); substring(text, -2); "
        "substring(text, -2, 1); substring(text, -9, 8); substring(text, 1, 0); substring(text, 1, -1); "
        "substring(text, -5, 2147483647); substr(text, 3); substring(text from 2 for 1); "
        "substring(text, 2147483647, 2147483647); substring(text, -2147483647, 5)"
    ),
    "left": "left(text, 1); left(text, 0); left(text, 100)",
    "right": "right(text, 1); right(text, 0); right(text, 100)",
    "split_part": (
        "split_part(text, ',', 1); split_part(text, ',', -1); split_part(text, ',', 2); split_part(text, ',', 9); "
        "split_part(text, ',', -9); split_part(text, 'aa', 1); split_part(text, '.', 1); "
        "split_part(text, '😀', 2)"
    ),
    "replace": (
        "replace(text, 'a', 'b'); replace(text, '', 'b'); replace(text, 'a', ''); replace(text, ',', other); "
        "replace(text, 'aa', 'a')"
    ),
    "year": "year(at); year(day); year(event_time)",
    "month": "month(at); month(day)",
    "day": "day(at); day(day); dayofmonth(day)",
    "dayofweek": "dayofweek(at); dayofweek(day)",
    "hour": "hour(at); hour(event_time)",
    "minute": "minute(at); minute(event_time)",
    "unix_seconds": "unix_seconds(at); unix_seconds(event_time)",
    "unix_millis": "unix_millis(at); unix_millis(event_time)",
    "to_date": "to_date(at); to_date(day); to_date(event_time); year(to_date(at)); date(at)",
    "date_trunc": (
        "date_trunc('second', at); date_trunc('MINUTE', at); date_trunc('hour', at); date_trunc('Day', at); "
        "date_trunc('month', at); date_trunc('year', at)"
    ),
    "size": "size(tags); size(labels); size(track)",
    "array_contains": (
        "array_contains(tags, 'a'); array_contains(tags, text); array_contains(numbers, 1); "
        "array_contains(numbers, big); array_contains(longs, big); array_contains(weights, x); "
        "array_contains(weights, 0e0)"
    ),
    "[]": (
        "tags[0]; tags[5]; numbers[1]; labels['a']; labels[text]; labels['']; counts['b']; track[0].at; "
        "track[1].name; numbers[0] + 1; counts['a'] * 2"
    ),
    "cast": "",
}
"""For every function and operator: expressions that use it, with semicolons between."""

FIELDS_OF = {
    "bigint": ("big", "n", "tiny"), "double": ("x", "f", "(x * y)"), "decimal": ("price", "wide", "fine", "cents"),
    "string": ("text",), "boolean": ("flag", "(n > 1)"), "date": ("day",), "timestamp": ("at", "event_time"),
    "null": ("null",),
}  # fmt: skip
DECIMALS = ("decimal(10,2)", "decimal(38,0)", "decimal(38,37)", "decimal(1,0)", "decimal(3,3)", "decimal(20,4)")


def casts() -> Iterator[str]:
    for kind, targets in CASTS.items():
        for target in targets:
            for to in DECIMALS if target == "decimal" else (target,):
                yield from (f"cast({value} as {to})" for value in FIELDS_OF[kind])
    yield from (
        "n::bigint",
        "cast(n as int)",
        "cast(x as float)",
        "bigint(1)" if False else "int(x)",
        "string(n)",
        "double(n)",
    )


OTHERS = [
    "p.url",
    "p.inner.deep",
    "P.Inner.DEEP",
    "`p`.`ms`",
    "TEXT",
    "1",
    "-1",
    "-9223372036854775808",
    "9223372036854775807",
    "1.50",
    ".5",
    "-0.0",
    "1e3",
    "-1e-3",
    "1e-400",
    "'a'",
    "true",
    "date '2024-02-29'",
    "timestamp '2024-02-29T12:00:00+02:00'",
    "99999999999999999999.0",
    "timestamp '0002-01-01'",
    "1L",
    "1.5D",
    "'\\u0041\\101\\t'",
    '"quoted"',
    "event_id",
    "0.001",
    "12345678901234567890123456789012345678.",
]


def everything() -> list[str]:
    return [*(text for texts in BY_NAME.values() for text in texts.split("; ") if text), *casts(), *OTHERS]


def edge_events(count: int) -> list[tuple[bytes, Event]]:
    """Events whose fields are edges, null or absent, in any combination."""
    chance = random.Random(11)  # noqa: S311  # made-up events, no secret
    made = []
    for number in range(count):
        fields = {each.name: _edge(each.type, chance) for each in SOURCE.schema if chance.random() > 0.05}
        at = datetime(2026, 3, 1, tzinfo=UTC)
        fields |= {"event_id": f"edge-{number}", "event_time": at}
        event = Event(9, number, fields["event_id"], at, fields)
        made.append((encode(fields).encode(), event))
    return made


def _edge(kind: Any, chance: random.Random) -> Any:
    if chance.random() < 0.05:
        return None
    if kind.kind == "struct":
        return {each.name: _edge(each.type, chance) for each in kind.fields}
    if kind.kind == "array":
        return [_edge(kind.element, chance) for _ in range(chance.randrange(4))]
    if kind.kind == "map":
        return {key: _edge(kind.element, chance) for key in chance.sample(("a", "b", "", "+5"), 2)}
    return chance.choice(EDGES[kind.ddl()])


@pytest.fixture(scope="module")
def records() -> list[tuple[bytes, Event]]:
    made = [(record.value, record.event) for record in generate(SOURCE, 2_000, 3)]
    return made + edge_events(1_500)


@pytest.fixture(scope="module")
def events(spark: SparkSession, records: list[tuple[bytes, Event]]) -> Iterator[DataFrame]:
    """The same records as Spark reads them: all valid."""
    rows = [("t", event.partition, event.offset, datetime(2026, 1, 1), value) for value, event in records]
    given = spark.createDataFrame(rows, "topic string, partition int, offset bigint, timestamp timestamp, value binary")
    read = with_event(given, SOURCE).cache()
    assert read.where("invalid is not null").select("invalid").limit(5).collect() == []
    yield read
    read.unpersist()


def differences(
    events: DataFrame, records: list[tuple[bytes, Event]], parsed: Mapping[str, TypedExpression]
) -> list[str]:
    """Where Spark gives another type, or another value for an event, than Python."""
    columns = [f.expr(each.spark_sql).alias(f"e{number}") for number, each in enumerate(parsed.values())]
    table = events.select("partition", "offset", *columns)
    found = []
    for (text, each), column in zip(parsed.items(), table.schema.fields[2:], strict=True):
        if column.dataType.simpleString() != each.type.ddl():
            found.append(f"{text}: Spark has {column.dataType.simpleString()}, we have {each.type.ddl()}")
    arrow = table.toArrow()
    places = zip(arrow.column(0).to_pylist(), arrow.column(1).to_pylist(), strict=True)
    of = {(event.partition, event.offset): event.fields for _, event in records}
    rows = [of[place] for place in places]
    for number, (text, each) in enumerate(parsed.items()):
        for row, spark_says in zip(rows, arrow.column(2 + number).to_pylist(), strict=True):
            python_says = each.evaluate(row)
            if not is_same(spark_says, python_says, each):
                found.append(f"{text}: Spark {spark_says!r}, Python {python_says!r} of {row} by {each.sql}")
                break
    return found


def is_same(spark_says: Any, python_says: Any, of: TypedExpression) -> bool:
    """Equal, and of one type. A decimal made of a double may differ in the 16th digit: Java 17 writes more of them."""
    is_of_double = "AS decimal(38" in of.sql and any(f"event.`{name}`" in of.sql for name in ("x", "y", "f"))
    if is_of_double and isinstance(python_says, Decimal) and isinstance(spark_says, Decimal):
        return abs(python_says - spark_says) <= abs(python_says) * Decimal("1e-15")
    return type(python_says) is type(spark_says) and python_says == spark_says


def test_every_function_operator_and_cast_gives_in_spark_what_it_gives_in_python(
    events: DataFrame, records: list[tuple[bytes, Event]]
) -> None:
    parsed = {text: functions.finite(parse(text, SCOPE)) for text in everything()}
    assert differences(events, records, parsed) == []


def test_every_name_and_every_cast_is_tried() -> None:
    assert {*BY_NAME} == functions.NAMES
    assert {*FIELDS_OF} == {*CASTS}
    assert all(texts for name, texts in BY_NAME.items() if name != "cast")


LEAVES = {
    "bigint": ["n", "big", "more", "tiny", "0", "1", "-7", "9223372036854775807"],
    "double": ["x", "y", "f", "p.ms", "0e0", "1e300", "2.5e0"],
    "decimal": ["price", "cents", "0.5", "-1.25"],
    "string": ["text", "other", "p.url", "''", "'a'", "tags[0]", "labels['a']"],
    "boolean": ["flag", "sign", "true", "false"],
    "date": ["day", "date '2024-02-29'"],
    "timestamp": ["at", "event_time", "timestamp '2024-02-29T00:00:00Z'"],
}
NODES: dict[str, list[str]] = {
    "bigint": [
        "{bigint} + {bigint}",
        "{bigint} - {bigint}",
        "{bigint} * {bigint}",
        "{bigint} % {bigint}",
        "-({bigint})",
        "abs({bigint})",
        "floor({double})",
        "ceil({double})",
        "length({string})",
        "year({date})",
        "hour({timestamp})",
        "unix_millis({timestamp})",
        "dayofweek({timestamp})",
        "cast({string} as bigint)",
        "cast({double} as bigint)",
        "cast({decimal} as bigint)",
        "cast({boolean} as bigint)",
        "size(tags)",
    ],
    "double": [
        "{double} + {double}",
        "{double} - {bigint}",
        "{double} * {double}",
        "{double} / {double}",
        "{bigint} / {bigint}",
        "-({double})",
        "abs({double})",
        "round({double}, 2)",
        "sqrt({double})",
        "cast({decimal} as double)",
    ],
    "decimal": [
        "{decimal} + {decimal}",
        "{decimal} - {bigint}",
        "{decimal} * {decimal}",
        "-({decimal})",
        "abs({decimal})",
        "cast({double} as decimal(12,3))",
        "cast({decimal} as decimal(9,1))",
        "cast({bigint} as decimal(20,0))",
    ],
    "string": [
        "lower({string})",
        "upper({string})",
        "trim({string})",
        "concat({string}, {string})",
        "substring({string}, -3, 2)",
        "left({string}, 2)",
        "right({string}, 2)",
        "split_part({string}, ',', 2)",
        "replace({string}, {string}, {string})",
        "cast({bigint} as string)",
        "cast({date} as string)",
        "cast({boolean} as string)",
    ],
    "boolean": [
        "{any} = {same}",
        "{any} <> {same}",
        "{any} < {same}",
        "{any} >= {same}",
        "{any} <=> {same}",
        "{any} is null",
        "{any} in ({same}, {same})",
        "{any} between {same} and {same}",
        "{boolean} and {boolean}",
        "{boolean} or {boolean}",
        "not ({boolean})",
        "contains({string}, {string})",
        "{string} like '%a_%'",
        "({boolean}) is true",
        "{bigint} < {double}",
        "{decimal} >= {bigint}",
    ],
    "date": ["to_date({timestamp})"],
    "timestamp": ["date_trunc('day', {timestamp})", "date_trunc('minute', {timestamp})"],
}
OF_ANY = [
    "coalesce({it}, {it})",
    "nullif({it}, {it})",
    "greatest({it}, {it})",
    "least({it}, {it})",
    "if({boolean}, {it}, {it})",
    "case when {boolean} then {it} when {boolean} then null else {it} end",
]


def random_expression(kind: str, depth: int, chance: random.Random) -> str:
    """A text of the grammar above, of this type and at most this deep."""
    if depth == 0 or chance.random() < 0.15:
        return chance.choice(LEAVES[kind])
    shape = chance.choice(OF_ANY if chance.random() < 0.25 else NODES[kind])
    whichever = chance.choice([*LEAVES])
    names = {**{each: each for each in LEAVES}, "it": kind, "any": whichever, "same": whichever}
    while "{" in shape:
        begin, _, rest = shape.partition("{")
        name, _, end = rest.partition("}")
        shape = f"{begin}({random_expression(names[name], depth - 1, chance)}){end}"
    return shape


@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # of a failure, which would hide the failure itself
@settings(
    max_examples=2, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None
)
@given(seed=st.integers(0, 2**64))
def test_random_expressions_give_in_spark_what_they_give_in_python(
    events: DataFrame, records: list[tuple[bytes, Event]], seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311
    parsed, refused = {}, []
    for _ in range(200):
        text = random_expression(chance.choice([*LEAVES]), 3, chance)
        try:
            parsed[text] = functions.finite(parse(text, SCOPE))
        except ExpressionError as error:
            refused.append(str(error))
    assert [text for text in refused if "digits" not in text] == []
    assert len(parsed) > 120
    assert differences(events, records, parsed) == []
