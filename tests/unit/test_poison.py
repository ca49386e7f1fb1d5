"""The corpus of poison itself."""

from __future__ import annotations

from torture.poison import FOR_ALL, POISON, poison_for
from views.source import Source


def test_there_are_at_least_sixty_kinds_for_any_source() -> None:
    bare = Source("bare", fields="event_id string, event_time timestamp")
    assert len(poison_for(bare)) == len(FOR_ALL) >= 60


def test_wrong_values_go_into_fields_of_their_type() -> None:
    web = Source("web", fields="event_id string, event_time timestamp, properties struct<ms: double>")
    values = {each.name: (each.value, each.reason) for each in poison_for(web)}
    assert values["double_as_true"] == (b'{"properties":{"ms":true}}', "properties.ms is not double")
    assert values["struct_as_array"] == (b'{"properties":[1]}', "properties is not an object")
    assert "int_as_text" not in values


def test_poison_bears_the_sources_own_names_for_id_and_time() -> None:
    source = Source("own", fields="id string, at timestamp", id_field="id", time_field="at")
    values = {each.name: (each.value, each.reason) for each in poison_for(source)}
    assert values["time_negative"] == (b'{"at":-5}', "at is not between")
    assert not [name for name, (value, _) in values.items() if b'"event_id"' in (value or b"")]


def test_no_two_kinds_share_a_name_or_are_the_same_record() -> None:
    assert len({each.name for each in POISON}) == len(POISON)
    assert len({(each.value, each.key) for each in POISON}) == len(POISON)
