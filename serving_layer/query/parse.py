"""From the wire to a question: the parameters of a query string or of JSON, checked against a view.

Every mistake names the parameter, what was given and what is allowed. docs/queries.md describes the parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Any

from serving_layer.errors import BadParameter
from serving_layer.query import cursors, order, parameters, parse_filters, periods
from serving_layer.query.model import Filter, Freshness, Order, Period, Query
from serving_layer.query.parameters import did_you_mean, shown, wrong
from serving_layer.query.parse_filters import FilterTerm
from serving_layer.query.periods import Step
from serving_layer.query.times import LATEST, SECOND, Duration, is_relative, parse_duration, parse_time, parse_zone
from views.aggregates import Quantiles
from views.errors import ExpressionError
from views.expressions import parse_condition
from views.typed_expression import Typed
from views.view import View

PARAMETERS = (
    "from", "to", "grain", "tz", "by", "answers", "quantiles", "having", "order", "limit", "cursor", "compare",
    "window", "fill", "explain", "max_staleness", "min_cut", "wait", "format",
)  # fmt: skip
"""`format` is looked at by formats.py."""
FILTERS, VIEW = "filters", "view"
"""Further members of a question in JSON."""
DEFAULT_RANGE = 24 * 3600 * SECOND
DEFAULT_ROWS = 1000
DEFAULT_WAIT_S = 2.0
MOST_QUANTILES = 100


@dataclass(frozen=True)
class QueryLimits:
    """How large a question may be."""

    max_rows: int = 10_000
    """Rows of one page."""
    max_periods: int = 20_000
    """Periods that a range is cut into."""
    max_values: int = 1_000
    """Values that the filters name, all together."""
    max_wait_s: float = 30.0
    """Seconds that a question may wait for the views to be fresh enough."""


Given = dict[str, Any]
"""The parameters by name: texts of a query string, or values of JSON."""


def parse_query(view: View, parameters: Sequence[tuple[str, str]], *, now: float, limits: QueryLimits) -> Query:
    """A question from the items of a query string. `now` is in seconds since 1970."""
    given: Given = {}
    asked: list[FilterTerm] = []
    for name, value in parameters:
        if found := parse_filters.find(name, view, PARAMETERS):
            asked.append(FilterTerm(name, *found, value))
        elif name not in PARAMETERS:
            raise _unknown(name, value, [*PARAMETERS, *parse_filters.names_of(view, PARAMETERS)])
        elif name in given:
            raise BadParameter(name, [given[name], value], f"{name} is there twice. Give it once.")
        else:
            given[name] = value
    return _question(view, given, parse_filters.filters(asked, view, limits.max_values), now, limits)


def parse_query_json(view: View, body: Mapping[str, Any], *, now: float, limits: QueryLimits) -> Query:
    """The same from JSON: the parameters by the same names, lists as lists, and all filters in one object."""
    for name, value in body.items():
        if name in (*PARAMETERS, FILTERS, VIEW):
            continue
        if name in view.keys:
            raise BadParameter(name, value, f'{name!r} is a key. Write {{"filters": {{"{name}": …}}}}.', [FILTERS])
        raise _unknown(name, value, [*PARAMETERS, FILTERS])
    if body.get(VIEW, view.name) != view.name:
        raise wrong(VIEW, body[VIEW], repr(view.name), [view.name])
    filters = body.get(FILTERS)
    asked = parse_filters.from_json({} if filters is None else filters, view)
    given = {name: value for name, value in body.items() if name in PARAMETERS and value is not None}
    return _question(view, given, parse_filters.filters(asked, view, limits.max_values), now, limits)


def _unknown(name: str, value: Any, known: list[str]) -> BadParameter:
    problem = f"There is no parameter {shown(name)}.{did_you_mean(name, known)} There are: {', '.join(known)}."
    return BadParameter(name, value, problem, known)


def _question(view: View, given: Given, filters: tuple[Filter, ...], now: float, limits: QueryLimits) -> Query:
    zone = parse_zone("tz", given.get("tz", "UTC"))
    text = parameters.text("cursor", given.get("cursor", ""))
    cursor = cursors.read(text) if text else None
    whole = _range(view, given, zone, now, cursor and cursor.range)
    grain = given.get("grain", "all")
    step = periods.parse_step(grain, view.bucket)
    of_rows = periods.cut(whole, step, zone, limits.max_periods)
    window = _window(given, step)
    by = parameters.names("by", given.get("by", ""), view.keys, "key")
    answers = _answers(given, view)
    question = Query(
        view=view,
        range=whole,
        grain=grain,
        tz=str(zone),
        periods=of_rows,
        windows=_windows(of_rows, window, zone),
        filters=filters,
        by=by,
        answers=answers,
        quantiles=_quantiles(given, view, answers),
        having=_having(given, view),
        order=_order(given, view, by, answers),
        limit=_limit(given, limits),
        cursor=text or None,
        previous=_windows(periods.before(of_rows, step, zone), window, zone) if _is_compared(given) else None,
        fill="fill" in given and bool(parameters.one_of("fill", given["fill"], ["zero"])),
        explain=parameters.flag("explain", given.get("explain", False)),
        freshness=_freshness(given, limits),
    )
    for each in (question.periods, question.windows if window else (), question.previous or ()):
        periods.check_buckets(each, view.bucket, grain, zone)
    _check_room(question)
    if cursor:
        cursors.check(text, cursor, question)
    return question


# ---- when --------------------------------------------------------------------


def _range(view: View, given: Given, zone: tzinfo, now: float, first: Period | None) -> Period:
    """The range, in whole buckets. On later pages a relative time is what it was on the `first`."""
    end = _time("to", given.get("to", "now"), zone, now, first and first.end)
    start = max(end - DEFAULT_RANGE, 0)
    if "from" in given:
        start = _time("from", given["from"], zone, now, first and first.start)
    elif first:
        start = first.start * SECOND
    if start >= end:
        raise wrong("from", given.get("from", "-24h"), f"before to, which is {shown(given.get('to', 'now'))}")
    bucket = view.bucket
    return Period(start // bucket.micros * bucket.seconds, -(-end // bucket.micros) * bucket.seconds)


def _time(name: str, given: Any, zone: tzinfo, now: float, first: int | None) -> int:
    """In microseconds."""
    return first * SECOND if first is not None and is_relative(given) else parse_time(name, given, zone, now)


def _window(given: Given, step: Step) -> Duration | None:
    if "window" not in given:
        return None
    found, grain = parse_duration("window", given["window"]), given.get("grain", "all")
    if step in ("month", "all"):
        problem = f"A window rolls over periods of one length, and grain is {grain}. Ask for grain=day, for example."
        raise BadParameter("window", given["window"], problem, "a grain up to week")
    if not periods.nominal(step) <= found.seconds <= LATEST or found.seconds % periods.nominal(step):
        raise wrong("window", given["window"], f"a multiple of the grain, {grain}", f"a multiple of {grain}")
    return found


def _windows(of: Sequence[Period], window: Duration | None, zone: tzinfo) -> tuple[Period, ...]:
    return periods.within_events(periods.rolling(of, window, zone) if window else of)


def _is_compared(given: Given) -> bool:
    return "compare" in given and bool(parameters.one_of("compare", given["compare"], ["previous_period"]))


def _freshness(given: Given, limits: QueryLimits) -> Freshness:
    wait, staleness = min(DEFAULT_WAIT_S, limits.max_wait_s), None
    if "wait" in given:
        wait = parse_duration("wait", given["wait"]).seconds
        if wait > limits.max_wait_s:
            raise wrong("wait", given["wait"], f"at most {limits.max_wait_s:g}s", {"to": f"{limits.max_wait_s:g}s"})
    if "max_staleness" in given:
        staleness = parse_duration("max_staleness", given["max_staleness"]).seconds
    return Freshness(staleness, parameters.cut("min_cut", given["min_cut"]) if "min_cut" in given else None, wait)


# ---- what --------------------------------------------------------------------


def _answers(given: Given, view: View) -> tuple[str, ...]:
    if "answers" not in given:
        return tuple(view.answers)
    found = parameters.names("answers", given["answers"], view.answers, "answer")
    if not found:
        raise wrong("answers", given["answers"], "one or more answers; leave it out for all", [*view.answers])
    return found


def _quantiles(given: Given, view: View, answers: Sequence[str]) -> tuple[float, ...]:
    if "quantiles" not in given:
        return ()
    there_are = [name for name, answer in view.answers.items() if isinstance(answer, Quantiles)]
    if not {*there_are} & {*answers}:
        remedy = f"Ask for {' or '.join(there_are)} too" if there_are else "The view has none: leave it out"
        problem = f"quantiles are of answers that were declared as Quantiles. {remedy}."
        raise BadParameter("quantiles", given["quantiles"], problem, there_are)
    return parameters.shares("quantiles", given["quantiles"], MOST_QUANTILES)


def _having(given: Given, view: View) -> Typed | None:
    if "having" not in given:
        return None
    scope = view.answer_scope()
    try:
        return parse_condition(given["having"], scope)
    except ExpressionError as error:
        problem = str(error).replace(repr(given["having"]), shown(given["having"]))
        raise BadParameter("having", given["having"], f"having: {problem}", [*scope.fields]) from None


def _order(given: Given, view: View, by: Sequence[str], answers: Sequence[str]) -> tuple[Order, ...]:
    if "order" not in given:
        return order.complete((), by)
    sortable = [order.BUCKET, *by, *(name for name in answers if order.kind_of(name, view))]
    allowed = [*sortable, *(f"-{name}" for name in sortable)]
    found = parameters.names("order", given["order"], allowed, "name to sort by")
    asked = [Order(each.removeprefix("-"), each.startswith("-")) for each in found]
    if not asked or len({each.name for each in asked}) < len(asked):
        raise wrong("order", given["order"], "one or more names, each once, with - before for descending", allowed)
    return order.complete(asked, by)


def _limit(given: Given, limits: QueryLimits) -> int:
    asked = given.get("limit", min(DEFAULT_ROWS, limits.max_rows))
    return parameters.whole_number("limit", asked, 1, limits.max_rows)


def _check_room(question: Query) -> None:
    """Refuse what would put two values under one name into a row."""
    added = {"previous": "compare"} if question.previous is not None else {}
    added |= {"explain": "explain"} if question.explain else {}
    for name, parameter in added.items():
        if name in (*question.by, *question.answers):
            problem = (
                f"The view itself has {name!r}, under which a row would hold what {parameter} adds. "
                f"Leave {parameter} out, or {name} out of by and answers."
            )
            raise BadParameter(parameter, name, problem)
