"""Parse the text of an expression with sqlglot. Everything in the tree is used or refused; nothing is ignored."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import sqlglot
from sqlglot import Token, TokenType, exp
from sqlglot.errors import SqlglotError

from views import functions
from views.errors import ExpressionError

NAMES_OF_NODES: dict[type[exp.Expression], tuple[str, tuple[str, ...]]] = {
    exp.Add: ("+", ("this", "expression")),
    exp.Sub: ("-", ("this", "expression")),
    exp.Mul: ("*", ("this", "expression")),
    exp.Div: ("/", ("this", "expression")),
    exp.Mod: ("%", ("this", "expression")),
    exp.Neg: ("negative", ("this",)),
    exp.Negative: ("negative", ("this",)),
    exp.EQ: ("=", ("this", "expression")),
    exp.NEQ: ("<>", ("this", "expression")),
    exp.LT: ("<", ("this", "expression")),
    exp.LTE: ("<=", ("this", "expression")),
    exp.GT: (">", ("this", "expression")),
    exp.GTE: (">=", ("this", "expression")),
    exp.NullSafeEQ: ("<=>", ("this", "expression")),
    exp.And: ("and", ("this", "expression")),
    exp.Or: ("or", ("this", "expression")),
    exp.Not: ("not", ("this",)),
    exp.Between: ("between", ("this", "low", "high")),
    exp.In: ("in", ("this", "expressions")),
    exp.Like: ("like", ("this", "expression")),
    exp.Coalesce: ("coalesce", ("this", "expressions")),
    exp.Nullif: ("nullif", ("this", "expression")),
    exp.Greatest: ("greatest", ("this", "expressions")),
    exp.Least: ("least", ("this", "expressions")),
    exp.If: ("if", ("this", "true", "false")),
    exp.Lower: ("lower", ("this",)),
    exp.Upper: ("upper", ("this",)),
    exp.Trim: ("trim", ("this",)),
    exp.Length: ("length", ("this",)),
    exp.Substring: ("substring", ("this", "start", "length")),
    exp.Left: ("left", ("this", "expression")),
    exp.Right: ("right", ("this", "expression")),
    exp.SplitPart: ("split_part", ("this", "delimiter", "part_index")),
    exp.Replace: ("replace", ("this", "expression", "replacement")),
    exp.StartsWith: ("startswith", ("this", "expression")),
    exp.EndsWith: ("endswith", ("this", "expression")),
    exp.Contains: ("contains", ("this", "expression")),
    exp.DPipe: ("concat", ("this", "expression")),
    exp.Concat: ("concat", ("expressions",)),
    exp.Abs: ("abs", ("this",)),
    exp.Floor: ("floor", ("this", "decimals")),
    exp.Ceil: ("ceil", ("this", "decimals")),
    exp.Round: ("round", ("this", "decimals")),
    exp.Sqrt: ("sqrt", ("this",)),
    exp.Year: ("year", ("this",)),
    exp.Month: ("month", ("this",)),
    exp.Day: ("day", ("this",)),
    exp.DayOfMonth: ("day", ("this",)),
    exp.DayOfWeek: ("dayofweek", ("this",)),
    exp.Hour: ("hour", ("this",)),
    exp.Minute: ("minute", ("this",)),
    exp.TsOrDsToDate: ("to_date", ("this",)),
    exp.UnixSeconds: ("unix_seconds", ("this",)),
    exp.UnixMillis: ("unix_millis", ("this",)),
    exp.ArraySize: ("size", ("this",)),
    exp.ArrayContains: ("array_contains", ("this", "expression")),
    exp.Bracket: ("[]", ("this", "expressions")),
}
"""How sqlglot calls a function or operator, and where it keeps the arguments -> how we call it."""
OF_TIMES = (exp.Year, exp.Month, exp.Day, exp.DayOfMonth, exp.DayOfWeek)
"""sqlglot wraps their argument into a cast to a date."""
SET_BY_SQLGLOT: dict[type[exp.Expression], str] = {
    exp.Greatest: "ignore_nulls",
    exp.Least: "ignore_nulls",
    exp.TsOrDsToDate: "safe",
    exp.DPipe: "safe",
    exp.Div: "safe",
    exp.Concat: "safe",
}
"""What it notes on every node of these types, whatever was typed in."""
NON_DETERMINISTIC = {
    "rand", "random", "randn", "randstr", "uniform", "uuid", "shuffle", "monotonically_increasing_id",
    "current_timestamp", "current_date", "current_time", "current_timezone", "localtimestamp", "now", "curdate",
    "unix_timestamp", "input_file_name", "input_file_block_start", "input_file_block_length", "spark_partition_id",
    "current_user", "session_user", "user", "current_database", "current_schema", "current_catalog",
}  # fmt: skip
INSTEAD: dict[type[exp.Expression], str] = {
    exp.Alias: "A name is given where the expression is declared, for example keys={'name': 'expression'}.",
    exp.Star: "Name a field.",
    exp.Subquery: "Subqueries are not allowed: an expression depends on one event.",
    exp.Select: "Subqueries are not allowed: an expression depends on one event.",
    exp.Exists: "Subqueries are not allowed: an expression depends on one event.",
    exp.Lambda: "Functions of functions are not supported. Take one element, for example tags[0].",
    exp.JSONExtract: "Declare the field in the source, and name it with a dot: properties.url.",
    exp.Slice: "Take one element, for example tags[0].",
    exp.Escape: "The escape of like is a backslash.",
    exp.ILike: "Write lower(…) like '…'.",
    exp.RegexpLike: "Write like, startswith, endswith or contains.",
    exp.NullSafeNEQ: "Write not (x <=> y).",
    exp.IntDiv: "Write floor(x / y).",
    exp.Extract: "Write year(…), month(…), day(…), hour(…) or minute(…).",
    exp.DateTrunc: "Write date_trunc('hour', …).",
    exp.Tuple: "Write one expression.",
    exp.Distinct: "Declare an answer Distinct('…').",
    exp.Filter: "Give the answer a where=….",
    exp.Interval: "Compare times with timestamp '2026-01-31T12:00:00Z', or numbers with unix_seconds(…).",
}
"""What to do in place of something that is not supported."""


def tree(text: str) -> Any:
    """The one expression that the text is."""
    try:
        tokens = sqlglot.tokenize(text, dialect="spark")
        trees = [each for each in sqlglot.parse(text, dialect="spark") if each is not None]
    except (
        SqlglotError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
    ) as error:  # the others are its own mistakes
        raise ExpressionError(f"this is not Spark SQL: {str(error).splitlines()[0]}") from None
    if len(trees) != 1 or any(token.token_type == TokenType.SEMICOLON for token in tokens):
        raise ExpressionError("write one expression, without a semicolon.")
    for token, after in zip(tokens, [*tokens[1:], None], strict=True):
        if after is not None and after.token_type == TokenType.L_PAREN:
            _check_deterministic(token.text.lower())
    return trees[0]


def check_nothing_lost(text: str, found: Any) -> None:
    """Refuse what has more names and constants than its tree: sqlglot drops arguments that it has no place for."""
    kept = list(found.find_all(exp.Literal, exp.Identifier, exp.Var, exp.Null, exp.Boolean))
    if _said(sqlglot.tokenize(text, dialect="spark")) > len(kept):
        raise ExpressionError("a function has more arguments, or an operator more words, than it takes.")


def _said(tokens: list[Token]) -> int:
    """How many names and constants were typed in."""
    constants = (TokenType.STRING, TokenType.NUMBER, TokenType.NULL, TokenType.TRUE, TokenType.FALSE)
    names = (TokenType.VAR, TokenType.IDENTIFIER)
    calls = {at for at, token in enumerate(tokens[1:]) if token.token_type == TokenType.L_PAREN}
    return sum(
        token.token_type in constants or (token.token_type in names and at not in calls)
        for at, token in enumerate(tokens)
    )


def taken(node: Any, *places: str) -> list[Any]:
    """The arguments at these places. Anything else that was typed in is refused: nothing is silently left out."""
    fine = {*places, SET_BY_SQLGLOT.get(type(node), ""), "negate" if isinstance(node, exp.Like) else ""}
    for place, value in node.args.items():
        if value and place not in fine:
            raise ExpressionError(
                f"{node.sql('spark')!r} has a part that is not supported ({place.replace('_', ' ')}). Leave that out."
            )
    return [node.args.get(place) for place in places]


def call(node: Any) -> tuple[str, list[Any]]:
    """The function's name and its arguments, in order; those that were not given are left out."""
    if isinstance(node, exp.Anonymous):
        (arguments,) = taken(node, "expressions", "this")[:1]
        return _known(node.name.lower()), list(arguments or ())
    if type(node) not in NAMES_OF_NODES:
        raise _refusal(node)
    if isinstance(node, exp.Concat) and not node.args.get("safe"):  # 'it''s' and 'a' 'b': not what they are in Spark
        raise ExpressionError("write a text in one piece; a quote inside it is \\'.")
    name, places = NAMES_OF_NODES[type(node)]
    given = taken(node, *places)
    flat = [each for one in given for each in (one if isinstance(one, list) else [one]) if each is not None]
    if isinstance(node, OF_TIMES) and isinstance(flat[0], exp.TsOrDsToDate):
        flat = taken(flat[0], "this")
    return name, flat


def _refusal(node: exp.Expression) -> ExpressionError:
    """Why a node that sqlglot knows, and we do not, is not allowed in an expression."""
    hint = next((text for kind, text in INSTEAD.items() if isinstance(node, kind)), "")
    if isinstance(node, exp.Func) and not hint:
        name = node.sql_name().lower()
        _check_deterministic(name)
        return _unknown_function(name)
    return ExpressionError(f"{node.sql('spark')!r} is not allowed in an expression. {hint or 'Leave it out.'}")


def _known(name: str) -> str:
    """The name, if it is a function here."""
    _check_deterministic(name)
    if name not in functions.NAMES:
        raise _unknown_function(name)
    return name


def _unknown_function(name: str) -> ExpressionError:
    close = get_close_matches(name, functions.NAMES, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    there_are = ", ".join(sorted(functions.NAMES))
    return ExpressionError(f"the function {name!r} is not supported.{hint} There are: {there_are}.")


def _check_deterministic(name: str) -> None:
    if name in NON_DETERMINISTIC:
        raise ExpressionError(
            f"{name}() gives another value each time; the same event must always give the same value. "
            "Use the event's fields."
        )
