"""The rules of the registry as tables: a state, a request, and the records it writes or the code it is refused with."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from master_dataset.collector.schema_registry.requests import id_of, version_of
from master_dataset.registry.errors import RegistryError
from master_dataset.registry.records import MAX_INT32, decode, encode
from master_dataset.registry.references import LATEST, MAX_DEPTH, numbered, resolve
from master_dataset.registry.rules import (
    clear_level,
    clear_mode,
    delete_subject,
    delete_version,
    register,
    set_level,
    set_mode,
)
from master_dataset.registry.schemas import Reference, Schema
from master_dataset.registry.state import State
from master_dataset.registry.topic import Decision
from views.schemas import NamedSchema
from views.schemas.model import MAX_REFERENCES

INT, LONG, TEXT = Schema('"int"'), Schema('"long"'), Schema('"string"')
USES_INT = Schema('["a"]', references=(Reference("a", "s", 1),))

Step = Callable[[State], Decision]


def added(schema: Schema, subject: str = "s", schema_id: int | None = None, version: int | None = None) -> Step:
    return lambda state: register(state, subject, schema, schema_id, version)


def removed(version: int | None = None, subject: str = "s", *, permanent: bool = False) -> Step:
    if version is None:
        return lambda state: delete_subject(state, subject, permanent=permanent)
    return lambda state: delete_version(state, subject, version, permanent=permanent)


def mode(value: object, subject: str | None = "s", *, force: bool = False) -> Step:
    return lambda state: set_mode(state, subject, value, force=force)


def level(value: object, subject: str | None = "s") -> Step:
    return lambda state: set_level(state, subject, value)


def after(steps: Iterable[Step]) -> State:
    """The state that the steps leave, through the bytes of the topic."""
    state = State()
    for step in steps:
        for record in step(state).records:
            state.apply(decode(*encode(record)))
    return state


@pytest.mark.parametrize(
    ("before", "step", "registered"),
    [
        ([], added(INT), (1, 1)),
        ([added(INT)], added(INT), (1, 1)),
        ([added(INT)], added(LONG), (2, 2)),
        ([added(INT)], added(INT, "t"), (1, 1)),
        ([added(INT), added(LONG), removed(2)], added(LONG), (3, 2)),
        ([added(INT), added(LONG), removed(2), removed(2, permanent=True)], added(TEXT), (2, 3)),
        ([added(INT), removed(), removed(permanent=True)], added(LONG), (1, 2)),
        ([added(INT)], added(LONG, version=2), (2, 2)),
        ([mode("IMPORT")], added(INT, schema_id=40, version=7), (7, 40)),
        ([mode("IMPORT"), added(INT, schema_id=40), mode("READWRITE")], added(LONG), (2, 41)),
        ([mode("IMPORT"), added(INT, schema_id=40)], added(INT, "t", 40), None),
    ],
)
def test_content_gets_this_version_and_id(before: list[Step], step: Step, registered: tuple[int, int] | None) -> None:
    if registered is None:
        with pytest.raises(RegistryError):
            step(after(before))
        return
    found = step(after(before)).result
    assert (found.version, found.id) == registered


def test_an_import_keeps_the_ids_of_the_other_registry() -> None:
    state = after([mode("IMPORT", None), added(INT, "s", 40), added(INT, "t", 40), added(LONG, "t", 39)])
    assert [use.subject for use in state.uses_of(40)] == ["s", "t"]
    assert state.schema(39) == LONG
    assert state.highest_id == 40


@pytest.mark.parametrize(
    ("before", "step", "code"),
    [
        ([], removed(), 40401),
        ([], removed(1), 40401),
        ([added(INT)], removed(2), 40402),
        ([added(INT)], removed(permanent=True), 40405),
        ([added(INT)], removed(1, permanent=True), 40407),
        ([added(INT), removed()], removed(), 40404),
        ([added(INT), added(LONG), removed(1)], removed(1), 40406),
        ([added(INT), added(USES_INT, "t")], removed(1), 42206),
        ([added(INT), added(USES_INT, "t")], removed(), 42206),
        ([], lambda state: clear_level(state, "s"), 40408),
        ([], lambda state: clear_mode(state, "s"), 40409),
        ([], added(INT, version=2), 42202),
        ([], level("SOMETIMES"), 42203),
        ([], level(None), 42203),
        ([], mode("SOMETIMES"), 42204),
        ([], added(INT, schema_id=4), 42205),
        ([mode("IMPORT")], added(INT), 42205),
        ([mode("READONLY")], added(INT), 42205),
        ([mode("READONLY", None)], added(INT), 42205),
        ([mode("READONLY_OVERRIDE", None), mode("READWRITE")], added(INT), 42205),
        ([added(INT), mode("READONLY")], removed(1), 42205),
        ([mode("READONLY")], level("NONE"), 42205),
        ([added(INT)], mode("IMPORT"), 42205),
        ([added(INT)], mode("IMPORT", None), 42205),
        ([mode("IMPORT", None), added(INT, "t", 4)], added(LONG, "s", 4), 42205),
        ([mode("IMPORT"), added(INT, "s", 4, 1)], added(LONG, "s", 5, 1), 42205),
        ([mode("IMPORT"), added(INT, "s", 4, MAX_INT32)], added(LONG, "s", 5), 42205),
        ([mode("IMPORT"), added(INT, "s", 4, MAX_INT32), mode("READWRITE")], added(LONG), 42205),
        ([mode("IMPORT"), added(INT, "s", MAX_INT32), mode("READWRITE")], added(LONG, "t"), 50001),
    ],
)
def test_a_request_is_refused_with_this_code(before: list[Step], step: Step, code: int) -> None:
    with pytest.raises(RegistryError) as refused:
        step(after(before))
    assert refused.value.code == code
    assert refused.value.status == int(str(code)[:3])


@pytest.mark.parametrize(
    "text", ["0" * 5000, "1" * 5000, "0" * 10 + "1" * 4990, "2147483648", "", "x", "-2", "1_0", "²"]
)
def test_a_number_in_a_path_is_refused_however_long_it_is(text: str) -> None:
    with pytest.raises(RegistryError) as refused:
        version_of(text)
    assert refused.value.code == 42202
    with pytest.raises(RegistryError) as refused:
        id_of(text)
    assert refused.value.code == 404


def test_a_number_in_a_path_may_be_the_highest() -> None:
    assert (version_of("2147483647"), id_of("2147483647"), version_of("latest")) == (MAX_INT32, MAX_INT32, None)


def test_a_deleted_subject_takes_its_level_and_mode_with_it() -> None:
    state = after([added(INT), level("FULL"), mode("READWRITE"), removed()])
    assert (state.levels, state.modes) == ({}, {})
    assert after([level("FULL", None), lambda state: clear_level(state, None)]).level("s") == "BACKWARD"


def test_forced_import_and_a_soft_deleted_reference_are_allowed() -> None:
    assert after([added(INT), mode("IMPORT", force=True)]).mode("s") == "IMPORT"
    state = after([added(INT), added(USES_INT, "t"), removed(1, "t"), removed(1)])
    assert resolve(state, USES_INT) == [NamedSchema("a", '"int"')]


def test_references_are_resolved_dependencies_first_and_once() -> None:
    middle = Schema("middle", references=(Reference("a", "s", 1),))
    top = Schema("top", references=(Reference("m", "m", 1), Reference("a", "s", 1)))
    state = after([added(INT), added(middle, "m")])
    assert resolve(state, top) == [NamedSchema("a", '"int"'), NamedSchema("m", "middle")]


def test_a_reference_to_the_latest_version_gets_its_number() -> None:
    state = after([added(INT), added(LONG), added(TEXT), removed(3)])
    asked = Schema('["a"]', references=(Reference("a", "s", LATEST), Reference("b", "s", 1)))
    schema = numbered(state, asked)
    assert schema == Schema('["a"]', references=(Reference("a", "s", 2), Reference("b", "s", 1)))
    assert numbered(state, schema) is schema
    with pytest.raises(RegistryError, match="'nosuch' and version -1") as refused:
        numbered(state, Schema("top", references=(Reference("a", "nosuch", LATEST),)))
    assert refused.value.code == 42201


def chain(length: int) -> State:
    """Subjects that each refer to the one before."""
    state = State()
    for number in range(length):
        references = (Reference(f"r{number}", f"s{number - 1}", 1),) if number else ()
        for record in register(state, f"s{number}", Schema(f"{number}", references=references), None, None).records:
            state.apply(record)
    return state


@pytest.mark.parametrize(
    "references",
    [
        (Reference("a", "nosuch", 1),),
        (Reference("a", "s0", 2),),
        (Reference("a", "s0", 1), Reference("a", "s1", 1)),
    ],
)
def test_references_that_lead_nowhere_or_to_two_are_refused(references: tuple[Reference, ...]) -> None:
    with pytest.raises(RegistryError) as refused:
        resolve(chain(2), Schema("top", references=references))
    assert refused.value.code == 42201


def test_references_are_followed_to_a_bounded_depth() -> None:
    state = chain(MAX_DEPTH + 1)
    assert len(resolve(state, Schema("top", references=(Reference("t", f"s{MAX_DEPTH - 1}", 1),)))) == MAX_DEPTH
    with pytest.raises(RegistryError, match="deep"):
        resolve(state, Schema("top", references=(Reference("t", f"s{MAX_DEPTH}", 1),)))


def test_schema_refers_to_as_many_others_as_can_be_parsed_with_it() -> None:
    """Directly or not: what was resolved beyond that could be parsed by nothing."""
    state = State()
    parts = tuple(Reference(f"r{number}", f"s{number}", 1) for number in range(MAX_REFERENCES))
    texts = {each.subject: Schema("part") for each in parts} | {"all but one": Schema("most", references=parts[1:])}
    for subject, schema in texts.items():
        for record in register(state, subject, schema, None, None).records:
            state.apply(record)
    most = Reference("most", "all but one", 1)
    assert len(resolve(state, Schema("top", references=(most,)))) == MAX_REFERENCES
    with pytest.raises(RegistryError, match="A schema may refer to 200 others, directly or not; this has more"):
        resolve(state, Schema("top", references=(most, parts[0])))
