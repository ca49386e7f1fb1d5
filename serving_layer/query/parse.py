"""Parse: from the parameters of a query string or of JSON to a Query, checked against a view.

Every error names the parameter, what was given and what is allowed. docs/queries.md describes the parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import tzinfo
from typing import Any

from serving_layer.errors import BadParameter
from serving_layer.query import cursors, order, parameters, parse_filters, periods
from serving_layer.query.limits import QueryLimits
from serving_layer.query.model import Filter, Freshness, Order, Query
from serving_layer.query.parameters import did_you_mean, shown, wrong
from serving_layer.query.parse_filters import FilterTerm
from serving_layer.query.periods import Step
from serving_layer.query.times import LATEST, SECOND, Duration, is_relative, parse_duration, parse_time, parse_zone
from serving_layer.readers.selection import Period
from views.aggregates import Quantiles
from views.errors import ExpressionError
from views.expressions import parse_condition
from views.typed_expression import TypedExpression
from views.view import View

PARAMETERS = (
    "from", "to", "grain", "tz", "by", "answers", "quantiles", "having", "order", "limit", "cursor", "compare",
    "window", "fill", "explain", "max_staleness", "min_cut", "wait", "format",
)  # fmt: skip
"""rest/formats.py reads `format`."""
FILTERS, VIEW = "filters", "view"
"""The other members of a query in JSON."""
DEFAULT_RANGE = 24 * 3600 * SECOND
DEFAULT_ROWS = 1000
DEFAULT_WAIT_S = 2.0
MAX_QUANTILES = 100

Given = dict[str, Any]
"""The parameters by name: texts of a query string, or values of JSON."""


def parse_query(view: View, parameters: Sequence[tuple[str, str]], *, now: float, limits: QueryLimits) -> Query:
    """A query from the pairs of a query string. `now` is in seconds since 1970."""
    given: Given = {}
    terms: list[FilterTerm] = []
    for name, value in parameters:
        if found := parse_filters.find(name, view, PARAMETERS):
            terms.append(FilterTerm(name, *found, value))
        elif name not in PARAMETERS:
            raise _unknown(name, value, [*PARAMETERS, *parse_filters.names_of(view, PARAMETERS)])
        elif name in given:
            raise BadParameter(name, [given[name], value], f"{name} is given twice. Give it once.")
        else:
            given[name] = value
    return _query(view, given, parse_filters.filters(terms, view, limits.max_values), now, limits)


def parse_range(view: View, parameters: Sequence[tuple[str, str]], *, now: float) -> Period:
    """The range of a query without a cursor that was parsed before: what its relative times mean now."""
    given: Given = dict(parameters)
    return _range(view, given, parse_zone("tz", given.get("tz", "UTC")), now, None)


def parse_query_json(view: View, body: Mapping[str, Any], *, now: float, limits: QueryLimits) -> Query:
    """A query from JSON: the same names, lists as lists, and all filters in one object."""
    for name, value in body.items():
        if name in (*PARAMETERS, FILTERS, VIEW):
            continue
        if name in view.keys:
            raise BadParameter(name, value, f'{name!r} is a key. Write {{"filters": {{"{name}": …}}}}.', [FILTERS])
        raise _unknown(name, value, [*PARAMETERS, FILTERS])
    if body.get(VIEW, view.name) != view.name:
        raise wrong(VIEW, body[VIEW], repr(view.name), [view.name])
    filters = body.get(FILTERS)
    terms = parse_filters.from_json({} if filters is None else filters, view)
    given = {name: value for name, value in body.items() if name in PARAMETERS and value is not None}
    return _query(view, given, parse_filters.filters(terms, view, limits.max_values), now, limits)


def _unknown(name: str, value: Any, known: list[str]) -> BadParameter:
    problem = f"There is no parameter {shown(name)}.{did_you_mean(name, known)} There are: {', '.join(known)}."
    return BadParameter(name, value, problem, known)


def _query(view: View, given: Given, filters: tuple[Filter, ...], now: float, limits: QueryLimits) -> Query:
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
    query = Query(
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
        cursor=cursor,
        previous=_windows(periods.before(of_rows, step, zone), window, zone) if _is_compared(given) else None,
        fill="fill" in given and bool(parameters.one_of("fill", given["fill"], ["zero"])),
        explain=parameters.flag("explain", given.get("explain", False)),
        freshness=_freshness(given, limits),
    )
    for some in (query.periods, query.windows if window else (), query.previous or ()):
        periods.check_buckets(some, view.bucket, grain, zone)
    _check_names(query)
    if cursor:
        cursors.check(text, cursor, query)
    return query


# ---- time --------------------------------------------------------------------


def _range(view: View, given: Given, zone: tzinfo, now: float, first: Period | None) -> Period:
    """The range, in whole buckets. On later pages a relative time means what it meant on the `first`."""
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
    """Microseconds since 1970."""
    return first * SECOND if first is not None and is_relative(given) else parse_time(name, given, zone, now)


def _window(given: Given, step: Step) -> Duration | None:
    if "window" not in given:
        return None
    found, grain = parse_duration("window", given["window"]), given.get("grain", "all")
    if step in ("month", "all"):
        problem = f"A window needs periods of one length; grain is {grain}. Use grain=day, for example."
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


# ---- answers --------------------------------------------------------------------


def _answers(given: Given, view: View) -> tuple[str, ...]:
    if "answers" not in given:
        return tuple(view.answers)
    found = parameters.names("answers", given["answers"], view.answers, "answer")
    if not found:
        raise wrong("answers", given["answers"], "one or more answers; without it you get all", [*view.answers])
    return found


def _quantiles(given: Given, view: View, answers: Sequence[str]) -> tuple[float, ...]:
    if "quantiles" not in given:
        return ()
    declared = [name for name, answer in view.answers.items() if isinstance(answer, Quantiles)]
    if not {*declared} & {*answers}:
        remedy = f"Ask for {' or '.join(declared)} too" if declared else "The view has none: leave quantiles out"
        problem = f"quantiles needs an answer that is declared as Quantiles. {remedy}."
        raise BadParameter("quantiles", given["quantiles"], problem, declared)
    return parameters.shares("quantiles", given["quantiles"], MAX_QUANTILES)


def _having(given: Given, view: View) -> TypedExpression | None:
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
    found = parameters.names("order", given["order"], allowed, "column")
    orders = [Order(name.removeprefix("-"), name.startswith("-")) for name in found]
    if not orders or len({each.name for each in orders}) < len(orders):
        raise wrong("order", given["order"], "one or more names, each once; a - in front is descending", allowed)
    return order.complete(orders, by)


def _limit(given: Given, limits: QueryLimits) -> int:
    rows = given.get("limit", min(DEFAULT_ROWS, limits.max_rows))
    return parameters.whole_number("limit", rows, 1, limits.max_rows)


def _check_names(query: Query) -> None:
    """Refuse a query whose rows would hold two values under one name."""
    added = {"previous": "compare"} if query.previous is not None else {}
    added |= {"explain": "explain"} if query.explain else {}
    for name, parameter in added.items():
        if name in (*query.by, *query.answers):
            problem = (
                f"{parameter} adds {name!r} to each row, and the view has a key or an answer of that name. "
                f"Leave {parameter} out, or {name} out of by and answers."
            )
            raise BadParameter(parameter, name, problem)
