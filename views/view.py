"""A view: what is computed from a source, declared once for the batch layer, the speed layer, the merge and the API."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from views.aggregates import Aggregate, Algebra
from views.derived import Derived
from views.errors import DeclarationError, ExpressionError, ViewError
from views.expressions import Scope, parse, parse_condition
from views.field_types import Field, FieldType
from views.functions import cast_to, field_at, finite
from views.grain import Grain, parse_grain
from views.short_texts import shortened
from views.source import NAME, Source
from views.typed_expression import TypedExpression
from views.types import BIGINT, DOUBLE, fit

KEY_KINDS = ("string", "bigint", "boolean", "date")
RESERVED = ("bucket", "day", "state", "meta")
"""Columns of every batch view; members of every answer."""
MAX_KEYS, MAX_ANSWERS = 16, 64
FORMAT = 1
"""Grows when the same declaration begins to mean other states: all views are then recomputed."""


@dataclass(frozen=True)
class Measure:
    """One stored answer, checked: which events, what of them, and the algebra of their states."""

    of: TypedExpression | None
    where: TypedExpression | None
    algebra: Algebra
    declared: TypedExpression | None = None
    """`of` as it was declared. Where states hold texts of events, `of` is a bounded form of long ones."""


@dataclass(frozen=True)
class View:
    """Answers about the events of a source, for each key and bucket of time.

        page_hits = View(
            "page_hits", source=web, grain="1h",
            keys={"url": "properties.url"},
            where="name = 'page_view'",
            answers={"hits": Count(), "visitors": Distinct("user_id")},
        )

    Keys, `where` and what aggregates look at are Spark SQL over the source's fields. An event whose key is null is
    counted under the key null; a text of more than 1,024 bytes under its short form (short_texts.py). Everything is
    checked here: a view that can be declared can be computed.
    """

    name: str
    source: Source
    answers: Mapping[str, Aggregate | Derived]
    keys: Mapping[str, str] = field(default_factory=dict)
    grain: str = "1h"
    where: str | None = None
    doc: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise ViewError(f"View {self.name!r}: {problem}")
        # Compute them now: a problem with an expression is reported where it was declared.
        for place in (self._grain, self.key_expressions, self.condition, self.measures, self.derived, self.hash):
            del place

    # ---- what was declared, checked ----

    @cached_property
    def _grain(self) -> Grain:
        try:
            return parse_grain(self.grain)
        except DeclarationError as error:
            raise ViewError(f"View {self.name!r}: {error}") from None

    @property
    def bucket(self) -> Grain:
        """How long its buckets are."""
        return self._grain

    @cached_property
    def scope(self) -> Scope:
        """What names mean in its expressions."""
        return event_scope(self.source)

    @cached_property
    def key_expressions(self) -> dict[str, TypedExpression]:
        """Its keys as they are stored, with long texts in short form, in the order in which they were declared."""
        return {name: shortened(key) for name, key in self._declared_keys.items()}

    @cached_property
    def _declared_keys(self) -> dict[str, TypedExpression]:
        found = {name: self._parsed(f"key {name!r}", text) for name, text in self.keys.items()}
        for name, key in found.items():
            if key.type.kind not in KEY_KINDS:
                raise ViewError(
                    f"View {self.name!r}: key {name!r} is of type {key.type.ddl()}; a key is {', '.join(KEY_KINDS)}. "
                    "Cast it, for example floor(…) or cast(… as string)."
                )
        return found

    @cached_property
    def condition(self) -> TypedExpression | None:
        """The condition that events must meet; None: all events count."""
        return self._condition("where", self.where)

    @cached_property
    def measures(self) -> dict[str, Measure]:
        """Its stored answers, in the order of their names: the order in a state's bytes."""
        return {
            name: self._measure(f"answer {name!r}", answer)
            for name, answer in sorted(self.answers.items())
            if isinstance(answer, Aggregate)
        }

    @cached_property
    def algebras(self) -> dict[str, Algebra]:
        """How the states of its stored answers are merged."""
        return {name: measure.algebra for name, measure in self.measures.items()}

    @cached_property
    def derived(self) -> dict[str, TypedExpression]:
        """Its derived answers."""
        return {name: found for name, (found, _) in self._derived_answers.items()}

    @cached_property
    def derived_from(self) -> dict[str, frozenset[str]]:
        """The stored answers that each derived one is computed from."""
        return {name: used for name, (_, used) in self._derived_answers.items()}

    @cached_property
    def _derived_answers(self) -> dict[str, tuple[TypedExpression, frozenset[str]]]:
        found = {}
        for name, answer in self.answers.items():
            if isinstance(answer, Derived):
                scope = Scope(self._stored_numbers, "numeric answer")
                found[name] = self._derived(name, answer, scope), frozenset(path[0] for path in scope.used)
        return found

    @cached_property
    def _stored_numbers(self) -> dict[str, TypedExpression]:
        return {
            name: _number(name, BIGINT if algebra.is_whole else DOUBLE)
            for name, algebra in self.algebras.items()
            if algebra.is_number
        }

    @cached_property
    def answer_types(self) -> dict[str, FieldType | None]:
        """The type of each answer, in the order in which they were declared; None: a list or an object."""
        return {
            name: self.derived[name].type if name in self.derived else self.algebras[name].type for name in self.answers
        }

    def answer_scope(self) -> Scope:
        """What names mean in a condition over its answers: those that are numbers or derived. See `numbers`."""
        derived = {name: _number(name, answer.type) for name, answer in self.derived.items()}
        return Scope({**self._stored_numbers, **derived}, "numeric answer")

    def _derived(self, name: str, answer: Derived, scope: Scope) -> TypedExpression:
        found = finite(self._parsed(f"answer {name!r}", answer.of, scope))
        if found.type.kind == "decimal":
            return cast_to(found, DOUBLE)
        if found.type.kind not in ("bigint", "double", "boolean"):
            raise ViewError(
                f"View {self.name!r}, answer {name!r}: {answer.of!r} is {found.type.ddl()}; "
                "a derived answer is a number or a boolean."
            )
        return found

    @cached_property
    def hash(self) -> str:
        """The definition hash: it changes exactly when the meaning of the view changes."""
        return hashlib.sha256(self.definition().encode()).hexdigest()

    @cached_property
    def used_fields(self) -> dict[str, str]:
        """The fields that its expressions look at, with their declared types: another type has other values."""
        for place in (self.key_expressions, self.condition, self.measures):
            del place  # reading them filled the scope's list
        return {".".join(path): _declared(self.source.schema, path).ddl() for path in self.scope.used}

    def definition(self) -> str:
        """What the view means, as JSON text: its expressions as they are computed, not as they were typed in.

        That long texts are shortened is left out: it is the same for all views, and began after some were computed.
        """
        meaning = {
            "format": FORMAT,
            "name": self.name,
            "source": self.source.name,
            "id": self.source.id_field,
            "time": self.source.time_field,
            "grain_s": self._grain.seconds,
            "keys": {name: _meaning(key) for name, key in self._declared_keys.items()},
            "where": _meaning(self.condition),
            "answers": {
                name: {
                    "aggregate": type(self.answers[name]).__name__,
                    "of": _meaning(measure.declared),
                    "where": _meaning(measure.where),
                    **self._aggregate(name).meaning(),
                }
                for name, measure in self.measures.items()
            },
            "derived": {name: _meaning(answer) for name, answer in self.derived.items()},
            "fields": self.used_fields,
        }
        if self.source.version > 1:  # then other records may be valid, and say other things
            meaning["reading"] = self.source.meaning
        return json.dumps(meaning, sort_keys=True, indent=1)

    # ---- answers ----

    def present(self, states: Mapping[str, Any], names: Iterable[str] | None = None) -> dict[str, Any]:
        """The states of a group -> its answers: all, in the order in which they were declared, or those of `names`.

        For those of `names` the states of `stored_for(names)` are enough.
        """
        stored = {name: self.algebras[name].present(state) for name, state in states.items()}
        numbers = self.numbers(stored) if self.derived else {}
        wanted = self.answers if names is None else names
        return {name: stored[name] if name in stored else self.derived[name].evaluate(numbers) for name in wanted}

    def stored_for(self, names: Iterable[str]) -> frozenset[str]:
        """The stored answers that these answers are, or are derived from."""
        return frozenset(each for name in names for each in self.derived_from.get(name, (name,)))

    def answers_in(self, condition: TypedExpression) -> frozenset[str]:
        """The answers that a condition over answers uses."""
        return frozenset(re.findall(r"`(\w+)`", condition.sql)) & self.answers.keys()

    def numbers(self, answers: Mapping[str, Any]) -> dict[str, Any]:
        """What a condition over answers computes with: presented answers as numbers, a derived one as it is."""
        return {
            name: _as_number(value, self.algebras[name]) if name in self.algebras else value
            for name, value in answers.items()
            if name in self._stored_numbers or name in self.derived
        }

    # ---- checks ----

    def _problems(self) -> Iterator[str]:
        """What is wrong with the shape. Expressions report their own problems later."""
        given: Any = self
        if not isinstance(given.name, str) or not re.fullmatch(NAME, given.name):
            yield "a name consists of lower-case letters, digits and underscores, and begins with a letter."
        if not isinstance(given.source, Source):
            yield f"source is {given.source!r}; it should be a Source."
        for what, mapping, maximum in (("keys", given.keys, MAX_KEYS), ("answers", given.answers, MAX_ANSWERS)):
            if not isinstance(mapping, Mapping):
                yield f"{what} is {mapping!r}; it should be a dict like {{'url': 'properties.url'}}."
            if len(mapping) > maximum:
                yield f"it has {len(mapping)} {what}; {maximum} are allowed."
            for name in mapping:
                if not isinstance(name, str) or not re.fullmatch(NAME, name):
                    yield f"{name!r} among its {what} is not a name: use lower-case letters, digits and underscores."
                if name in RESERVED:
                    yield f"{name!r} among its {what} is reserved: every batch view has it. Rename it."
        if both := sorted({*given.keys} & {*given.answers}):
            yield f"{both} is both a key and an answer. Rename the answer, for example '{both[0]}_count'."
        if not given.answers:
            yield "it has no answers. Add one, for example answers={'events': Count()}."
        for name, answer in given.answers.items():
            if not isinstance(answer, Aggregate | Derived):
                yield (
                    f"answer {name!r} is {answer!r}; it should be an aggregate like Count() or Sum('ms'), or Derived. "
                    "What cannot be merged from parts (a median of medians, an average of averages) is none."
                )
        if given.answers and all(isinstance(answer, Derived) for answer in given.answers.values()):
            yield "all its answers are derived. Add the aggregates that they are derived from."

    def _aggregate(self, name: str) -> Aggregate:
        answer = self.answers[name]
        if not isinstance(answer, Aggregate):
            raise ViewError(f"View {self.name!r}: answer {name!r} is derived.")
        return answer

    def _measure(self, place: str, answer: Aggregate) -> Measure:
        text = answer.expression()
        of = None if text is None else finite(self._parsed(place, text))
        try:
            algebra = answer.algebra(of)
            answer.check_grain(self._grain.seconds)
        except ExpressionError as error:
            shown = "" if text is None else f"{text!r}: "
            raise ViewError(f"View {self.name!r}, {place}: {shown}{error}") from None
        stored = algebra.stored(of) if of is not None else None
        return Measure(stored, self._condition(f"{place}, where", answer.where), algebra, declared=of)

    def _parsed(self, place: str, text: str, scope: Scope | None = None) -> TypedExpression:
        try:
            return parse(text, scope or self.scope)
        except ExpressionError as error:
            raise ViewError(f"View {self.name!r}, {place}: {error}") from None

    def _condition(self, place: str, text: str | None) -> TypedExpression | None:
        if text is None:
            return None
        try:
            return parse_condition(text, self.scope)
        except ExpressionError as error:
            raise ViewError(f"View {self.name!r}, {place}: {error}") from None


def event_scope(source: Source) -> Scope:
    """The fields of a source's events. Its id and time are those that every event has, given or made."""
    fields = {}
    for each in source.schema:
        if each.name == source.id_field:
            fields[each.name] = field_at("event_id", each.type, _reader(each.name))
        elif each.name == source.time_field:
            fields[each.name] = field_at("event_time", each.type, _reader(each.name))
        else:
            fields[each.name] = field_at(f"event.`{each.name}`", each.type, _reader(each.name))
    return Scope(fields)


def _declared(fields: tuple[Field, ...], path: tuple[str, ...]) -> FieldType:
    (found,) = (each.type for each in fields if each.name.lower() == path[0])
    return found if len(path) == 1 else _declared(found.fields, path[1:])


def _reader(name: str) -> Any:
    return lambda row: row.get(name)


def _number(name: str, kind: FieldType) -> TypedExpression:
    """An answer inside an expression: whole numbers stay whole, any other stored number is a double."""
    return TypedExpression(kind, f"try_cast(`{name}` AS {kind.ddl()})", _reader(name))


def _as_number(value: Any, algebra: Algebra) -> int | float | None:
    """A presented number (a decimal is a text) as a number of that kind; a sum beyond 64 bits is null, as in Spark."""
    if value is None:
        return None
    return fit(value) if algebra.is_whole else float(value)


def _meaning(value: TypedExpression | None) -> Any:
    return None if value is None else {"sql": value.sql, "type": value.type.ddl()}
