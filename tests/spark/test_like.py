"""`like` in Spark: the answers of Spark's own LIKE and of Python, without the work that stops a job."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from views.expressions import parse
from views.like import LikePattern
from views.source import Source
from views.types import literal
from views.view import event_scope

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCOPE = event_scope(Source("texts", fields="event_id string, event_time timestamp, text string"))
PIECES = (*"%%%%%%%%", "_", "a", "b", "ab", "\n", ".", "$", "'", "😀", "é", r"\%", r"\_", "\\\\")
LETTERS = "aab\n%_\\.$'😀é"
POISON = ("%a%a%a%a%a%a%a%a%b", "a%a_a%a_a%a_a%_b", "%%%%%%%%b")


def as_declared(pattern: str) -> str:
    """The pattern in an expression, which escapes backslashes and quotes once more."""
    return "text like '" + pattern.replace("\\", "\\\\").replace("'", "\\'") + "'"


def test_every_pattern_matches_what_sparks_own_like_and_python_match(spark: SparkSession) -> None:
    chance = random.Random(17)  # noqa: S311  # made-up texts, no secret
    texts = ["", *("".join(chance.choices(LETTERS, k=chance.randrange(1, 12))) for _ in range(400))]
    patterns = sorted({"".join(chance.choices(PIECES, k=chance.randrange(10))) for _ in range(200)})
    assert sum(LikePattern(pattern).backtracks for pattern in patterns) > 60
    columns = [
        column
        for number, pattern in enumerate(patterns)
        for column in (
            f.expr(parse(as_declared(pattern), SCOPE).spark_sql).alias(f"ours_{number}"),
            f.expr(f"event.text LIKE {literal(pattern)}").alias(f"theirs_{number}"),
        )
    ]
    given = spark.createDataFrame([((text,),) for text in [*texts, None]], "event struct<text: string>")
    rows = given.select(f.col("event.text").alias("text"), *columns).toArrow().to_pylist()
    wrong = [
        (row["text"], pattern, row[f"ours_{number}"], row[f"theirs_{number}"])
        for row in rows
        for number, pattern in enumerate(patterns)
        if not row[f"ours_{number}"]
        is row[f"theirs_{number}"]
        is (None if row["text"] is None else LikePattern(pattern).matches(row["text"]))
    ]
    assert len(rows) == len(texts) + 1
    assert wrong == []


def test_a_text_that_almost_matches_everywhere_does_not_stop_the_job(spark: SparkSession) -> None:
    """By Spark's own LIKE this job would not end."""
    given = spark.createDataFrame([(("a" * 20_000,),)], "event struct<text: string>")
    columns = [f.expr(parse(as_declared(pattern), SCOPE).spark_sql) for pattern in POISON]
    assert given.select(*columns).collect() == [(False,) * len(POISON)]
