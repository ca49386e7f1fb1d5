"""The corpus of poison itself."""

from __future__ import annotations

import pytest

from master_dataset.errors import InvalidEvent
from master_dataset.events.envelope import compile_validator, parse_json, prepare_event
from torture.poison import FOR_ALL, poison_for
from torture.shop import shop
from views.catalog.campaign_spend import ads
from views.catalog.sensor_readings import sensors
from views.catalog.web import web
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
    kinds = poison_for(shop)
    assert len({each.name for each in kinds}) == len(kinds)
    assert len({(each.value, each.key) for each in kinds}) == len(kinds)


@pytest.mark.parametrize("source", [shop, web, ads, sensors], ids=lambda source: source.name)
def test_every_kind_is_poison_for_its_source(source: Source) -> None:
    validate = compile_validator(source)

    def is_event(value: bytes | None) -> bool:
        try:
            event = parse_json(value or b"")
            validate(event)
            prepare_event(source, event)
        except InvalidEvent:
            return False
        return True

    assert [each.name for each in poison_for(source) if is_event(each.value)] == []
