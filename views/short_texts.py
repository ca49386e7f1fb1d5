"""Short texts: what a view stores in place of a long text, so that no key and no counted value is large.

    'https://shop.example/?q=…' of 200,000 bytes  ->  its first 200 characters, '…sha256:' and its hash

A short text is its own short form, and so is the short form of a long one: shortening twice changes nothing. Plain
Python and Spark's built-in functions give the same text. Decision 0020 has the reasons.

Hashes have an order of their own, so Min and Max store a long text without one:

    more than 1,024 characters  ->  the first 1,024 of them and '…'

Cutting keeps the order: the smallest text, cut, is the smallest of the cut texts. Cutting twice changes nothing either.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from views.typed_expression import TypedExpression

MAX_BYTES = 1_024
"""The longest text that is stored as it is, in bytes of UTF-8."""
KEPT = 200
"""How many characters of a longer one are kept: four bytes each at most, so that a short form is never a long text."""
SEPARATOR = "…sha256:"
DIGITS = 64
MAX_CHARACTERS = 1_024
"""The longest text that Min and Max store as it is, in characters: no text of `MAX_BYTES` is cut."""
CUT = "…"


def shorten(text: str) -> str:
    """The text itself, or its beginning and its hash where it is long."""
    if 4 * len(text) <= MAX_BYTES:  # most texts; no character takes more than four bytes
        return text
    encoded = text.encode()
    if len(encoded) <= MAX_BYTES:
        return text
    return f"{text[:KEPT]}{SEPARATOR}{hashlib.sha256(encoded).hexdigest()}"


def shorten_value(value: Any) -> Any:
    """The same of any value of a key: only texts are ever long."""
    return shorten(value) if isinstance(value, str) else value


def is_short_form(value: Any) -> bool:
    """Whether a value looks like the short form of a long text."""
    is_as_long = isinstance(value, str) and len(value) == KEPT + len(SEPARATOR) + DIGITS
    return is_as_long and value[KEPT:].startswith(SEPARATOR)


def is_long(text: str) -> bool:
    """Whether a text is stored in its short form."""
    return 4 * len(text) > MAX_BYTES and len(text.encode()) > MAX_BYTES


def shortened(of: TypedExpression) -> TypedExpression:
    """The expression whose value is what a view stores: its text in short form; any other value as it is."""
    if of.type.kind != "string":
        return of
    sql, evaluate = of.sql, of.evaluate
    short = f"concat(left({sql}, {KEPT}), '{SEPARATOR}', sha2({sql}, 256))"
    return replace(
        of,
        sql=f"if(octet_length({sql}) > {MAX_BYTES}, {short}, {sql})",
        evaluate=lambda row: shorten_value(evaluate(row)),
        value=shorten_value(of.value),
    )


def cut(text: str) -> str:
    """The text itself, or its beginning where it is long. Of two texts the smaller one never becomes the larger.

    Texts that differ in the first `MAX_CHARACTERS` still do. Longer ones that agree in them become one text, which is
    larger than the text that ends there. A limit in bytes would not do: where a character of four bytes does not fit,
    one of three may, and that can be larger than '…'.
    """
    return text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + CUT


def cut_value(value: Any) -> Any:
    """The same of any value that is compared: only texts are ever long."""
    return cut(value) if isinstance(value, str) else value


def beginning(of: TypedExpression) -> TypedExpression:
    """The expression whose value is what Min and Max store: its text, cut; any other value as it is."""
    if of.type.kind != "string":
        return of
    sql, evaluate = of.sql, of.evaluate
    return replace(
        of,
        sql=f"if(char_length({sql}) > {MAX_CHARACTERS}, concat(left({sql}, {MAX_CHARACTERS}), '{CUT}'), {sql})",
        evaluate=lambda row: cut_value(evaluate(row)),
        value=cut_value(of.value),
    )
