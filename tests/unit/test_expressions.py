"""What an expression may not say: each refusal names the text, the place and what to do; nothing is left out unseen."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from views import functions
from views.errors import ExpressionError
from views.expressions import parse, parse_condition
from views.functions.registry import BUILDERS
from views.source import Source
from views.view import event_scope

SOURCE = Source(
    "web",
    fields="""
        event_id string, event_time timestamp, user_id string, status int, big bigint, ms double, price decimal(10,2),
        wide decimal(38,10), day date, flag boolean, tags array<string>, labels map<string,string>,
        properties struct<url: string, inner: struct<deep: int>>, track array<struct<at: double>>
    """,
)
SCOPE = event_scope(SOURCE)

REFUSED: list[tuple[Any, list[str]]] = [
    # Not one expression.
    ("", ["'' is not an expression", "lower(url)"]),
    ("  ", ["is not an expression"]),
    (None, ["None is not an expression"]),
    (5, ["5 is not an expression"]),
    (b"ms", ["is not an expression"]),
    ("-- only a comment", ["one expression"]),
    ("ms; status", ["one expression", "semicolon"]),
    ("ms;", ["one expression", "semicolon"]),
    ("ms, status", ["not Spark SQL"]),
    ("ms +", ["not Spark SQL"]),
    ("(ms", ["not Spark SQL"]),
    ("'open", ["not Spark SQL"]),
    ("ms as m", ["'ms AS m'", "keys={'name'"]),
    ("*", ["'*'", "Name a field"]),
    ("properties.*", ["'*'", "name a field"]),
    ("(ms, status)", ["one expression"]),
    ("x -> x", ["not allowed", "with a dot"]),
    ("select 1", ["Subqueries are not allowed"]),
    ("(select 1)", ["Subqueries are not allowed"]),
    ("exists (select 1)", ["Subqueries are not allowed"]),
    ("status in (select 1)", ["query", "Leave that out"]),
    ("drop table web", ["not allowed"]),
    ("ms = :ms", ["not allowed"]),
    ("ms = ?", ["not allowed"]),
    ("interval 1 day", ["not allowed", "unix_seconds"]),
    ("a" * 10_001, ["10001 characters", "at most 10000"]),
    ("(" * 200 + "ms" + ")" * 200, ["nested more than 100 deep"]),
    (" + ".join(["big"] * 150), ["nested more than 100 deep"]),
    (" + ".join(["big"] * 3000), ["characters"]),
    (f"{'abs(' * 12}big{')' * 12}", ["abs is nested too often"]),
    # Unknown names.
    ("urll", ["there is no field 'urll'", "user_id"]),
    ("Statsu = 1", ["there is no field 'Statsu'", "Did you mean 'status'?"]),
    ("properties.ulr", ["there is no field 'properties.ulr'", "Did you mean 'url'?"]),
    ("properties.inner.deeep", ["'properties.inner.deeep'", "Did you mean 'deep'?"]),
    ("ms.url", ["there is no field 'ms.url'", "none inside it"]),
    ("track[0].att", ["there is no field", "Did you mean 'at'?"]),
    ("lowr(user_id)", ["the function 'lowr' is not supported", "Did you mean 'lower'?", "There are:"]),
    ("regexp_extract(user_id, 'a', 1)", ["the function 'regexp_extract' is not supported"]),
    ("date_part('hour', event_time)", ["the function 'date_part' is not supported"]),
    ("to_timestamp(user_id, 'yyyy')", ["not supported"]),
    # More than one event, or another value each time.
    ("sum(ms)", ["aggregates", "Sum('ms')", "Ratio"]),
    ("1 + avg(ms)", ["'AVG(ms)' aggregates"]),
    ("count(distinct user_id)", ["aggregates"]),
    ("count(*)", ["aggregates"]),
    ("max(ms) over (partition by status)", ["aggregates"]),
    ("lag(ms) over (order by event_time)", ["aggregates"]),
    ("rand()", ["rand()", "another value each time", "Use the event's fields"]),
    ("uuid()", ["uuid()", "another value"]),
    ("now()", ["now()", "another value"]),
    ("current_timestamp", ["current_timestamp()", "another value"]),
    ("current_date()", ["current_date()", "another value"]),
    ("date(event_time, now())", ["now()", "another value"]),
    ("current_user()", ["current_user()", "another value"]),
    # Wrong types.
    ("lower(ms)", ["lower takes string, not double"]),
    ("ms + user_id", ["+ takes numbers, not string"]),
    ("user_id = 5", ["combines string and bigint", "cast("]),
    ("status and flag", ["and takes boolean, not bigint"]),
    ("not status", ["not takes boolean"]),
    ("case when status then 1 end", ["case when takes boolean"]),
    ("case when flag then 1 else 'a' end", ["case combines"]),
    ("case when flag then null end", ["every branch of case is null"]),
    ("if(flag, 1, 'a')", ["combines"]),
    ("coalesce(ms, user_id)", ["coalesce combines"]),
    ("tags = tags", ["compares array<string>", "parts"]),
    ("year(user_id)", ["year takes timestamp or date, not string"]),
    ("hour(day)", ["hour takes timestamp, not date"]),
    ("status is 5", ["is takes null, true or false"]),
    ("ms is true", ["is takes boolean, not double"]),
    ("cast(user_id as double)", ["cast from string to double is not supported", "casts to: string, bigint"]),
    ("cast(event_time as bigint)", ["cast from timestamp to bigint is not supported"]),
    ("cast(ms as string)", ["cast from double to string"]),
    ("cast(ms as nothing)", ["nothing"]),
    ("cast(ms as timestamp_ntz)", ["not supported"]),
    ("cast(ms as decimal(39,2))", ["decimal(39", "38"]),
    ("price / 2", ["a division of decimals would be rounded", "as double", "Ratio"]),
    ("wide + 1", ["39 digits", "there are 38", "Cast an operand"]),
    ("wide * price", ["49 digits", "Cast an operand"]),
    ("-wide", ["decimal(38,10)", "34 digits", "cast("]),
    ("abs(wide)", ["34 digits"]),
    ("price % 2", ["% takes bigint"]),
    ("round(price, 1)", ["round takes bigint or double"]),
    ("array_contains(tags, 1)", ["array_contains looks for bigint in an array of string"]),
    ("tags", ["of type array<string>", "take one part"]),
    ("properties", ["of type struct", "take one part"]),
    ("properties.inner", ["take one part"]),
    ("labels", ["map<string,string>"]),
    ("null", ["of type null"]),
    # Numbers and times that are none.
    ("9223372036854775808", ["9223372036854775808 is larger than 64 bits hold", "as a decimal"]),
    ("-9223372036854775809", ["larger than 64 bits"]),
    ("1e400", ["1e400 is larger than a double holds"]),
    ("1." + "0" * 38, ["39 digits", "at most 38"]),
    ("0x1F", ["not allowed"]),
    ("timestamp '2026-02-30'", ["'2026-02-30' is not a time", "timestamp '2026-01-31T12:00:00Z'"]),
    ("date 'today'", ["'today' is not a time"]),
    ("timestamp '0001-01-01T00:00:00+05:00'", ["is not a time"]),
    ("user_id = 'it''s'", ["in one piece", "\\'"]),
    ("user_id = 'a' 'b'", ["in one piece"]),
    # Arguments that must be written out.
    ("user_id like properties.url", ["like: ", "should be a text, written out"]),
    (r"user_id like 'a\\b'", ["a backslash stands before"]),
    ("substring(user_id, status)", ["a position from 1, written out"]),
    ("substring(user_id, 1, 3000000000)", ["31 bits"]),
    ("left(user_id, -1)", ["0 or more, not -1"]),
    ("round(ms, 16)", ["0 to 15"]),
    ("round(ms, status)", ["a number of digits from 0 to 15, written out"]),
    ("split_part(user_id, '', 1)", ["not empty"]),
    ("split_part(user_id, ',', 0)", ["not 0"]),
    ("tags[status]", ["a position from 0, written out"]),
    ("tags[-1]", ["a position is 0 or more"]),
    ("labels[1]", ["a map's key takes string"]),
    # What sqlglot reads and we do not know.
    ("trim(both 'x' from user_id)", ["TRIM(", "Leave that out"]),
    ("trim(leading from user_id)", ["LTRIM(user_id)", "Leave that out"]),
    ("trim('x', user_id)", ["Leave that out"]),
    ("user_id like 'a!%' escape '!'", ["not allowed", "backslash"]),
    ("user_id ilike 'A%'", ["not allowed", "lower("]),
    ("user_id rlike 'a.*'", ["not allowed", "contains"]),
    ("user_id like any ('a', 'b')", ["user_id"]),
    ("round(ms, 1, 2)", ["Leave that out"]),
    ("floor(ms, 1)", ["floor takes 1 argument, not 2"]),
    ("floor(ms, 1, 2)", ["floor takes 1 argument"]),
    ("mod(status, 2, 3)", ["more arguments"]),
    ("length(user_id, 'x')", ["Leave that out"]),
    ("to_date(event_time, 'yyyy')", ["Leave that out"]),
    ("date(event_time, 'x')", ["more arguments"]),
    ("date_trunc('hour', event_time, 'UTC')", ["more arguments"]),
    ("date_trunc('week', event_time)", ["date_trunc knows no 'week'", "second, minute, hour, day, month, year"]),
    ("date_trunc('quarter', event_time)", ["date_trunc knows no 'quarter'"]),
    ("date_trunc('nonsense', event_time)", ["date_trunc knows no 'nonsense'"]),
    ("date_trunc(user_id, event_time)", ["date_trunc knows no"]),
    ("date_trunc('hour', day)", ["date_trunc takes timestamp, not date"]),
    ("trunc(event_time, 'hour')", ["date_trunc('hour', …)"]),
    ("extract(year from event_time)", ["not allowed", "year("]),
    ("cast(user_id as date format 'yyyy')", ["not supported"]),
    ("try_cast(user_id as bigint)", ["Leave that out"]),
    ("status is distinct from big", ["not allowed", "<=>"]),
    ("status between symmetric 1 and 2", ["symmetric", "Leave that out"]),
    ("status in unnest(tags)", ["Leave that out"]),
    ("status = any(tags)", ["not allowed"]),
    ("status div 2", ["not allowed", "floor("]),
    ("status & 1", ["not allowed"]),
    ("~status", ["not allowed"]),
    ("tags[0:2]", ["not allowed", "one element"]),
    ("tags[0, 1]", ["[] takes 2 arguments, not 3"]),
    ("element_at(tags, 1)", ["Leave that out"]),
    ("array(1, 2)", ["not supported"]),
    ("lower(distinct user_id)", ["not allowed"]),
    ("lower(user_id) filter (where flag)", ["where="]),
    ("lower(user_id) over ()", ["aggregates"]),
    ("user_id collate UNICODE", ["'collate' is not supported"]),
    ("event_time at time zone 'UTC'", ["not allowed"]),
    ("lower()", ["lower"]),
    ("lower(user_id, user_id)", ["lower"]),
    ("if(flag)", ["if"]),
    ("greatest(ms)", ["greatest takes 2 to 100 arguments, not 1"]),
    ("case(ms)", ["Spark SQL"]),
    ("lower (user_id) x", ["not allowed", "keys="]),
]


@pytest.mark.parametrize(("text", "words"), REFUSED, ids=[repr(text)[:50] for text, _ in REFUSED])
def test_what_cannot_be_computed_is_refused_with_the_text_the_place_and_a_fix(text: Any, words: list[str]) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text, SCOPE)
    for word in words:
        assert word in str(caught.value)
    assert repr(text)[:40].strip("'\"") in str(caught.value)


def test_a_condition_is_boolean() -> None:
    with pytest.raises(ExpressionError, match=r"'status \+ 1' is bigint; a condition is boolean, for example"):
        parse_condition("status + 1", SCOPE)


SAME = [
    ("lower(user_id)", "LOWER( `User_Id` )  -- a comment"),
    ("status >= 500 and flag", "STATUS>=500 AND(flag)"),
    ("status <> 1", "status != 1"),
    ("coalesce(status, 0)", "nvl(status, 0)"),
    ("case when flag then 1 else 2 end", "if(flag, 1, 2)"),
    ("user_id = 'a'", 'user_id == "a"'),
    ("properties.url", "`properties`.`URL`"),
    ("cast(ms as bigint)", "ms :: BIGINT"),
    ("timestamp '2026-01-01T00:00:00Z'", "timestamp '2026-01-01T02:00:00+02:00'"),
    ("-5", "- 5"),
    ("status not in (1, 2)", "not (status in (1, 2))"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_two_ways_to_write_the_same_have_the_same_sql(one: str, other: str) -> None:
    assert parse(one, SCOPE) == parse(other, SCOPE)


@pytest.mark.parametrize("name", sorted(name for name in functions.NAMES if name[0].isalpha()))
def test_no_function_takes_arguments_that_it_does_not_use(name: str) -> None:
    """Sqlglot has a place for some arguments that we do not know, and silently drops others."""
    _, least, most = BUILDERS.get(name, (None, 1, 3))
    for count in range(most + 1, min(most, 4) + 5):
        text = f"{name}({', '.join(['user_id'] * count)})"
        with pytest.raises(ExpressionError):
            parse(text, SCOPE)
    if least > 0:
        with pytest.raises(ExpressionError):
            parse(f"{name}()", SCOPE)


def test_a_literal_cannot_break_out_of_the_sql() -> None:
    for text in ("it's", "a\\", "\\'", "${spark.app.name}", "--", "/*", "\n", '"'):
        built = parse("user_id = '" + text.replace("\\", "\\\\").replace("'", "\\'") + "'", SCOPE)
        assert built.evaluate({"user_id": text}) is True
        inside = built.sql.split("'", 1)[1].rsplit("'", 1)[0]
        assert "$" not in inside
        assert re.fullmatch(r"(\\.|[^'\\])*", inside, re.DOTALL)


@given(st.text(alphabet="abmst01.,'`()[]*+-/<>=|&!:;?% \\\"\nnullandorcasewhenthenendislikein", max_size=40))
def test_any_text_is_an_expression_or_is_refused(text: str) -> None:
    with suppress(ExpressionError):
        parse(text, SCOPE).evaluate({"user_id": "a", "ms": 1.5, "status": 200, "flag": True})


def test_chains_of_doubles_do_not_make_the_sql_explode() -> None:
    assert len(parse(" + ".join(["ms"] * 50), SCOPE).sql) < 5_000
