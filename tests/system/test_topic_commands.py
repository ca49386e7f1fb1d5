"""Topics, records and consumer groups from the command line, on a real broker."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
import typer
from confluent_kafka import Consumer, TopicPartition
from typer.testing import CliRunner, Result

from infra.clients.kafka import librdkafka_config
from infra.clients.kafka_admin import KafkaAdmin
from master_dataset.errors import MasterDatasetError
from master_dataset.kafka import rewind as rewinding
from master_dataset.kafka.errors import TopicError
from master_dataset.kafka.groups import describe_group
from master_dataset.kafka.tail import Reading, read_as_group, read_from
from master_dataset.kafka.topic_patterns import matching_names
from master_dataset.kafka.topics import EARLIEST, LATEST, TopicPlan, create_topic, existing_topics
from tests.conftest import Stack, wait_until
from tidemark.commands import consume, groups, produce, topics

pytestmark = pytest.mark.usefixtures("collector_alone")

Tidemark = Callable[..., Result]


@pytest.fixture
def tidemark(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Tidemark:
    """Runs a command in this process; whatever it raises for a person comes out."""
    monkeypatch.setenv("TIDEMARK_HOME", str(stack.settings.home))
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setattr("infra.terminal.out._width", 300)
    apps: dict[str, typer.Typer] = {"topics": topics.app, "groups": groups.app}
    for name, module in (("produce", produce), ("consume", consume)):
        apps[name] = typer.Typer()
        apps[name].command()(module.command)

    def run(name: str, *arguments: str, given: bytes | None = None) -> Result:
        return CliRunner().invoke(apps[name], list(arguments), input=given, catch_exceptions=False)

    return run


@pytest.fixture(scope="module")
def admin(stack: Stack) -> Iterator[KafkaAdmin]:
    with KafkaAdmin(stack.settings, stack.kafka) as made:
        yield made


@pytest.fixture
def topic(admin: KafkaAdmin) -> str:
    name = f"cmd-{uuid.uuid4().hex[:12]}"
    create_topic(admin, TopicPlan(name, 2, {}))
    return name


def read_json(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def read_lines(result: Result) -> list[Any]:
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


# ---- topics ------------------------------------------------------------------


def test_a_topic_is_created_altered_and_deleted(tidemark: Tidemark, admin: KafkaAdmin) -> None:
    name = f"cmd-{uuid.uuid4().hex[:12]}"
    made = read_json(tidemark("topics", "create", name, "--partitions", "2", "--retention-hours", "1.5", "-o", "json"))
    assert (len(made["partitions"]), made["configs"]["retention.ms"]) == (2, "5400000")
    with pytest.raises(TopicError, match=r"There is a topic .* already"):
        tidemark("topics", "create", name)
    with pytest.raises(TopicError, match="cannot reduce"):
        tidemark("topics", "alter", name, "--partitions", "1")
    shown = tidemark("topics", "alter", name, "--partitions", "4", "--retention-hours", "unlimited", "--compacted")
    assert "partitions" in shown.stdout
    assert existing_topics(admin)[name] == 4
    assert tidemark("topics", "alter", name).exit_code == 2, "nothing is to change"
    refused = tidemark("topics", "delete", name)
    assert (refused.exit_code, "--yes" in refused.stderr) == (2, True), "nobody can be asked"
    assert name in existing_topics(admin)
    assert read_json(tidemark("topics", "delete", name, "--yes", "-o", "json")) == {"deleted": name}
    wait_until("the topic to be gone", lambda: name not in existing_topics(admin))
    with pytest.raises(TopicError, match="There is no topic"):
        tidemark("topics", "delete", name, "--yes")


@pytest.mark.parametrize("name", ["__consumer_offsets", "tidemark.alerts", "tidemark.mine", "none.dead"])
def test_reserved_topics_are_neither_created_nor_written(tidemark: Tidemark, name: str) -> None:
    with pytest.raises(TopicError, match=r"own topics|reserved"):
        tidemark("topics", "create", name)
    with pytest.raises(MasterDatasetError, match=r"own topics|reserved"):
        tidemark("produce", name, given=b"x\n")


def test_deleting_the_topic_of_a_source_says_what_is_lost(tidemark: Tidemark, admin: KafkaAdmin) -> None:
    for name, loss in (("web", "the archiver refuses the source"), ("web.dead", "dead letters")):
        refused = tidemark("topics", "delete", name)
        assert refused.exit_code == 2
        assert loss in " ".join(refused.stderr.replace("│", "").split())
        assert name in existing_topics(admin)
    with pytest.raises(TopicError, match="tidemark topics apply"):
        tidemark("topics", "create", "web")


# ---- records -----------------------------------------------------------------


def test_lines_are_sent_and_printed_again(tidemark: Tidemark, topic: str) -> None:
    sent = tidemark("produce", topic, "--key-separator", ":", "-H", "from=here", given=b"a:1\nb:2:3\r\n:\n")
    assert sent.stdout == f"Sent 3 records to {topic}.\n"
    found = read_lines(tidemark("consume", topic, "--from-beginning", "--until-end", "-o", "json"))
    assert {(each["key"], each["value"]) for each in found} == {("a", "1"), ("b", "2:3"), ("", "")}
    assert all(each["headers"] == [{"key": "from", "value": "here"}] for each in found)
    line = tidemark("consume", topic, "--from-beginning", "--max", "1").stdout
    assert len(line.splitlines()) == 1
    assert len(line.split("\t")) == 5


def test_messages_name_their_parts(tidemark: Tidemark, topic: str) -> None:
    lines = [
        {"value": "text", "key": "k", "partition": 1, "timestamp": 1_700_000_000_000},
        {"value": {"a": [1]}, "headers": [{"key": "own", "value": "x"}]},
    ]
    given = "\n\n".join(map(json.dumps, lines)).encode()
    assert read_json(tidemark("produce", topic, "--ndjson", "--partition", "0", "-o", "json", given=given))["sent"] == 2
    found = read_lines(tidemark("consume", topic, "--from-beginning", "--until-end", "-o", "json"))
    by_partition = {each["partition"]: each for each in found}
    assert (by_partition[1]["value"], by_partition[1]["timestamp"]) == ("text", 1_700_000_000_000)
    assert (by_partition[0]["value"], by_partition[0]["headers"]) == ('{"a":[1]}', [{"key": "own", "value": "x"}])


@pytest.mark.parametrize(
    ("options", "line", "reason"),
    [
        (("--ndjson",), b'{"valu": 1}', "Line 2: valu: a message has no such member"),
        (("--ndjson",), b"[1]", "Line 2: a message is an object"),
        (("--ndjson",), b"{", "Line 2: "),
        (("--ndjson",), b'{"value": 1, "headers": [{"key": "tidemark-x", "value": ""}]}', "Line 2: .* is reserved"),
        (("--key-separator", "="), b"no separator", "Line 2: it lacks the separator '='"),
    ],
)
def test_a_wrong_line_ends_it_and_those_before_are_stored(
    tidemark: Tidemark, topic: str, options: tuple[str, ...], line: bytes, reason: str
) -> None:
    first = b'{"value": "v", "key": "k"}' if "--ndjson" in options else b"k=v"
    with pytest.raises(MasterDatasetError, match=rf"(?s){reason}.*The lines before it are stored: 1 records"):
        tidemark("produce", topic, *options, given=first + b"\n" + line + b"\n" + first)
    found = read_lines(tidemark("consume", topic, "--from-beginning", "--until-end", "-o", "json"))
    assert [(each["key"], each["value"]) for each in found] == [("k", "v")]


def test_what_does_not_exist_is_refused(tidemark: Tidemark, topic: str) -> None:
    with pytest.raises(TopicError, match="topics create nosuch"):
        tidemark("produce", "nosuch", given=b"x")
    with pytest.raises(TopicError, match="partitions 0 to 1, not 2"):
        tidemark("produce", topic, "--partition", "2", given=b"x")
    with pytest.raises(TopicError, match="There is no topic"):
        tidemark("consume", "nosuch")
    with pytest.raises(TopicError, match=r"offsets 0 to 0 .*; 7 is not among them"):
        tidemark("consume", topic, "--partition", "0", "--offset", "7")
    assert tidemark("consume", topic, "--offset", "0").exit_code == 2
    assert tidemark("consume", topic, "--group", "g", "--partition", "0").exit_code == 2


def test_control_characters_do_not_reach_the_terminal(tidemark: Tidemark, topic: str) -> None:
    tidemark("produce", topic, "--partition", "0", given="\x1b[2Jü\x07\n".encode())
    tidemark("produce", topic, "--partition", "1", given=b"\xff\n")
    shown = tidemark("consume", topic, "--from-beginning", "--until-end").stdout
    assert "\\x1b[2Jü\\x07" in shown
    assert "base64:/w==" in shown
    assert "\x1b" not in shown


def test_offsets_of_one_partition(tidemark: Tidemark, topic: str) -> None:
    tidemark("produce", topic, "--partition", "1", given=b"m0\nm1\nm2\n")
    found = read_lines(tidemark("consume", topic, "--partition", "1", "--offset", "1", "--until-end", "-o", "json"))
    assert [(each["offset"], each["value"]) for each in found] == [(1, "m1"), (2, "m2")]


def test_a_pattern_prints_the_topics_that_match(tidemark: Tidemark, admin: KafkaAdmin, topic: str) -> None:
    names = [topic, f"{topic}.b", f"x{topic}"]
    for name in names[1:]:
        create_topic(admin, TopicPlan(name, 1, {}))
    for name in names:
        tidemark("produce", name, given=name.encode())
    pattern = ("--pattern", rf"{topic}(\..*)?", "--from-beginning", "--until-end")
    found = read_lines(tidemark("consume", *pattern, "-o", "json"))
    assert {(each["topic"], each["value"]) for each in found} == {(name, name) for name in names[:2]}
    lines = [line.split("\t") for line in tidemark("consume", *pattern).stdout.splitlines()]
    assert {(line[0], line[-1], len(line)) for line in lines} == {(name, name, 6) for name in names[:2]}
    group = f"cmd-p-{topic}"
    assert len(read_lines(tidemark("consume", *pattern, "--group", group, "-o", "json"))) == 2
    assert read_lines(tidemark("consume", *pattern, "--group", group, "-o", "json")) == [], "both were committed"
    assert tidemark("consume", "--pattern", f"none-{topic}", "--until-end").stdout == ""
    for wrong in ((), (topic, "--pattern", "a"), ("--pattern", "("), ("--pattern", "a", "--partition", "0")):
        assert tidemark("consume", *wrong).exit_code == 2


@pytest.mark.parametrize("group", [None, "cmd-later"])
def test_a_topic_that_is_made_later_is_read_from_its_beginning(
    stack: Stack, tidemark: Tidemark, admin: KafkaAdmin, topic: str, group: str | None
) -> None:
    tidemark("produce", topic, given=b"first")
    seen: list[Any] = []

    def look() -> tuple[str, ...]:
        return matching_names(rf"{topic}(\..*)?", list(existing_topics(admin)))

    def begin_of(name: str) -> dict[tuple[str, int], int]:
        return {(name, number): 0 for number in range(existing_topics(admin)[name])}

    reading = Reading((topic,), "read_committed", max_records=2, look=look)
    config = librdkafka_config(stack.settings, stack.kafka)
    with ThreadPoolExecutor(1) as threads:
        if group is None:
            done = threads.submit(read_from, config, reading, begin_of(topic), seen.append, begin_of)
        else:
            named = f"{group}-{topic}"
            done = threads.submit(read_as_group, config, reading, named, seen.append, from_beginning=True)
        wait_until("the first record", lambda: seen)
        create_topic(admin, TopicPlan(f"{topic}.later", 1, {}))
        tidemark("produce", f"{topic}.later", given=b"second")
        done.result(timeout=60)
    assert [each.value() for each in seen] == [b"first", b"second"]


# ---- groups ------------------------------------------------------------------


@pytest.fixture
def group(tidemark: Tidemark, topic: str) -> str:
    """A group that has read m0 to m3 of partition 0, of six."""
    name = f"cmd-g-{uuid.uuid4().hex[:12]}"
    lines = [{"value": f"m{n}", "timestamp": 1_000_000_000_000 + 1000 * n} for n in range(6)]
    tidemark("produce", topic, "--ndjson", "--partition", "0", given="\n".join(map(json.dumps, lines)).encode())
    found = tidemark("consume", topic, "--group", name, "--from-beginning", "--max", "4", "-o", "json")
    assert [each["value"] for each in read_lines(found)] == ["m0", "m1", "m2", "m3"]
    return name


def committed(admin: KafkaAdmin, group: str) -> dict[int, int]:
    found = describe_group(admin, group)
    assert found is not None
    return {each["partition"]: each["committed"] for each in found["partitions"]}


def test_a_group_goes_on_where_it_was(tidemark: Tidemark, admin: KafkaAdmin, topic: str, group: str) -> None:
    assert group in {each["group"] for each in read_json(tidemark("groups", "list", "-o", "json"))}
    assert committed(admin, group) == {0: 4}
    shown = read_json(tidemark("groups", "show", group, "-o", "json"))
    assert (shown["lag"], shown["members"]) == (2, [])
    assert topic in tidemark("groups", "show", group).stdout
    rest = read_lines(tidemark("consume", topic, "--group", group, "--until-end", "-o", "json"))
    assert [each["value"] for each in rest] == ["m4", "m5"]
    assert committed(admin, group)[0] == 6


@pytest.mark.parametrize(
    ("options", "new"),
    [
        (("--to-beginning",), {0: 0}),
        (("--to-end",), {0: 6}),
        (("--to-time", "2001-09-09T01:46:42Z"), {0: 2}),
        (("--to-time", "2101-01-01"), {0: 6}),
        (("--to-offset", "{topic}:0:1", "--to-offset", "{topic}:1:0"), {0: 1, 1: 0}),
        (("--to-end", "--topic", "{topic}"), {0: 6, 1: 0}),
    ],
)
def test_a_group_is_rewound_once_asked_to(
    tidemark: Tidemark, admin: KafkaAdmin, topic: str, group: str, options: tuple[str, ...], new: dict[int, int]
) -> None:
    given = [option.replace("{topic}", topic) for option in options]
    planned = tidemark("groups", "reset", group, *given, "-o", "json")
    assert {each["partition"]: each["new"] for each in read_json(planned)} == new
    assert "--execute" in planned.stderr
    assert committed(admin, group) == {0: 4}, "nothing changes before"
    tidemark("groups", "reset", group, *given, "--execute")
    assert committed(admin, group) == new
    again = tidemark("groups", "reset", group, *given)
    assert "nothing changes" in again.stdout


def test_rewinding_is_refused_with_a_reason(tidemark: Tidemark, topic: str, group: str) -> None:
    with pytest.raises(TopicError, match=r"offsets 0 to 6 .*; 7 is not among them"):
        tidemark("groups", "reset", group, "--to-offset", f"{topic}:0:7")
    with pytest.raises(TopicError, match="There is no consumer group 'nosuch'"):
        tidemark("groups", "reset", "nosuch", "--to-end")
    with pytest.raises(TopicError, match="There is no topic 'nosuch'"):
        tidemark("groups", "reset", group, "--to-end", "--topic", "nosuch")
    for wrong in ([], ["--to-end", "--to-beginning"], ["--to-offset", "a:b"], ["--to-time", "yesterday"]):
        assert tidemark("groups", "reset", group, *wrong).exit_code == 2


def test_a_group_with_members_is_not_rewound(
    stack: Stack, tidemark: Tidemark, admin: KafkaAdmin, topic: str, group: str
) -> None:
    moves = rewinding.plan_rewind(admin, group, EARLIEST)
    config = {"bootstrap.servers": stack.kafka, "group.id": group, "enable.auto.commit": False}
    with closing(Consumer(config)) as member:
        member.subscribe([topic])
        wait_until("the member to have partitions", lambda: member.consume(1, 0.1) is not None and member.assignment())
        with pytest.raises(TopicError, match="has 1 member"):
            tidemark("groups", "reset", group, "--to-beginning", "--execute")
        with pytest.raises(TopicError, match="members meanwhile"):
            rewinding.rewind(admin, group, moves)
        assert member.committed([TopicPartition(topic, 0)], timeout=20)[0].offset == 4
    assert rewinding.plan_rewind(admin, group, LATEST)
