"""The hand-off on a real Redis: in whatever order things happen, an answer is right or is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from redis import Redis

from hand_off.speed_views import scripts
from tests.system.redis_server import redis_server
from tests.tiers import times

pytest.register_assert_rewrite("tests.system.hand_off_machine")

from tests.system.hand_off_machine import ENDLESS_MS, HandOff, Happening  # noqa: E402  # after its asserts are to be rewritten

SETTINGS = settings(
    max_examples=times(20, 600),
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Redis]:
    with redis_server(tmp_path_factory.mktemp("redis")) as client:
        yield client


def test_a_reader_of_any_run_is_answered_rightly_or_refused(redis: Redis, tmp_path: Path) -> None:
    run_state_machine_as_test(lambda: HandOff(redis, tmp_path), settings=SETTINGS)


# ---- each rule is there for a reason ---------------------------------------------

ONE, TWO = (1, 0), (2, 0)
ENDLESS = f"'{ENDLESS_MS}'"
EPOCH = "redis.call('GET', KEYS[1]) ~= ARGV[1]"


class Sabotage(NamedTuple):
    """A rule of a script, what stands there instead, and a story in which that gives a wrong answer."""

    script: str
    rule: str
    instead: str
    story: list[Happening]


TAKEN_OVER = [("writer_counts", 0, ONE), ("run_takes_over", 0, (3, 1))]
"""A takeover has gone past events that the speed layer never saw."""
OVERTAKEN = [("writer_counts", 0, ONE), ("run_overtakes", 0, (3, 1))]
"""An overtake has gone past events that the speed layer never saw, while its writer lives."""

SABOTAGES = {
    "a writer that starts is not the only one": Sabotage(
        "start", "redis.call('SET', KEYS[1], ARGV[1])", "", [("writer_counts", 0, ONE)]
    ),
    "a writer that slept makes meta from an old entry": Sabotage(
        "init", EPOCH, "false",
        [
            ("writer_steps", 1), ("writer_counts", 0, ONE), ("run_opens", 0), ("run_ends", 0),
            ("redis_is_flushed",), ("writer_steps", 1),
        ],
    ),
    "what a run counted has no marks after a flush": Sabotage(
        "init", "'marked', '{}', 'published', ARGV[3], 'horizon', 0",
        f"'marked', ARGV[2], 'published', ARGV[3], 'horizon', {ENDLESS}",
        [
            ("writer_counts", 0, ONE), ("run_opens", 0), ("run_ends", 0), ("redis_is_flushed",),
            ("writer_counts", 1, (3, 0)),
        ],
    ),
    "a zombie says that its marks are all": Sabotage(
        "load", EPOCH, "false",
        [*TAKEN_OVER, ("writer_steps", 1), ("writer_steps", 1), ("run_takes_over", 0, TWO), *[("writer_steps", 1)] * 2],
    ),
    "Redis forgets a chunk of marks": Sabotage(
        "load", "ARGV[2] ~= '1'", "false",
        [
            *TAKEN_OVER, *[("writer_steps", 1)] * 2, ("redis_is_saved",), ("writer_steps", 1),
            ("redis_falls_back",), ("writer_steps", 1),
        ],
    ),
    "a micro-batch is applied where it does not begin": Sabotage(
        "apply", "applied ~= ARGV[2]", "false",
        [
            ("writer_counts", 0, ONE), ("redis_is_saved",), ("writer_counts", 0, ONE), ("writer_steps", 0, ONE),
            ("redis_falls_back",), ("writer_steps", 0),
        ],
    ),
    "Redis forgets loaded marks and not the epoch": Sabotage(
        "apply", "marked ~= applied", "false",
        [
            *TAKEN_OVER, *[("writer_steps", 1)] * 2, ("redis_is_saved",), *[("writer_steps", 1)] * 3,
            ("writer_steps", 1, ONE), ("redis_falls_back",), ("writer_steps", 1),
        ],
    ),
    "marks that were not kept for a while are taken for all": Sabotage(
        "apply", "tonumber(horizon or 0) < wanted", "false",
        [
            ("copies_count", 0), ("writer_counts", 0, ONE), *[("writer_steps", 1)] * 2, ("redis_is_saved",),
            *[("writer_steps", 1)] * 2, ("writer_steps", 1, ONE), ("redis_falls_back",), ("writer_steps", 1),
        ],
    ),
    "a writer that keeps no marks says that they are all": Sabotage(
        "apply", "'horizon', ARGV[7]", f"'horizon', {ENDLESS}",
        [("copies_count", 0), ("writer_counts", 0, ONE), ("writer_counts", 1, (3, 0))],
    ),
    "a micro-batch goes into a generation that has ended": Sabotage(
        "apply", "not newest or cjson.decode(newest).gid ~= ARGV[4]", "false",
        [
            ("writer_counts", 0, ONE), ("writer_steps", 0, ONE), ("run_opens", 0), ("writer_steps", 0),
            ("run_ends", 0),
        ],
    ),
    "what is counted has no marks": Sabotage(
        "apply", "redis.call('HSET', KEYS[4], ARGV[5], ARGV[6])", "",
        [("writer_counts", 0, ONE), ("writer_crashes", 0), ("writer_counts", 0, (3, 1))],
    ),
    "a new generation leaves out views that are still served": Sabotage(
        "open", "take(generation.catalog)", "",
        [("writer_counts", 0, ONE), ("run_opens", 1), ("writer_crashes", 0), ("writer_counts", 0, ONE)],
    ),
    "an older run is published after a newer one": Sabotage(
        "publish", "tonumber(published) >= tonumber(ARGV[1])", "false",
        [
            ("writer_counts", 0, ONE), ("run_opens", 0), ("run_goes_on", 0), ("writer_crashes", 0),
            ("writer_counts", 0, ONE), ("run_opens", 0), ("run_ends", 0), ("run_ends", 0),
        ],
    ),
    "a run is published whose generation is gone": Sabotage(
        "publish", "generation.run == tonumber(ARGV[1]) and generation.from == ARGV[2]", "true",
        [
            ("writer_counts", 0, ONE), ("run_opens", 0), ("redis_is_flushed",), ("writer_counts", 1, ONE),
            ("run_ends", 0),
        ],
    ),
    "a takeover takes back a newer run": Sabotage(
        "takeover", "tonumber(published) >= tonumber(ARGV[2])", "false",
        [
            ("writer_counts", 0, ONE), ("run_fences", 0), ("run_goes_on", 0), ("run_opens", 0), ("run_ends", 0),
            ("run_ends", 0),
        ],
    ),
    "a takeover leaves generations from before its gap": Sabotage(
        "takeover", "redis.call('DEL', KEYS[3])", "", TAKEN_OVER
    ),
    "what a takeover went past has no marks": Sabotage(
        "takeover", "'applied', ARGV[3],", "'applied', ARGV[3], 'marked', ARGV[3],", TAKEN_OVER
    ),
    "an overtake takes back a newer run": Sabotage(
        "overtake", "tonumber(published) >= tonumber(ARGV[1])", "false",
        [
            ("writer_counts", 0, ONE), ("run_begins_to_overtake", 0, ONE), ("run_goes_on", 0),
            ("writer_counts", 0, ONE), ("run_opens", 0), ("run_ends", 0), ("run_ends", 0),
        ],
    ),
    "an overtake goes back behind a writer that is past it": Sabotage(
        "overtake", "offset > (cut[partition] or 0)", "false",
        [
            ("writer_counts", 0, ONE), ("run_begins_to_overtake", 0, ONE), ("run_goes_on", 0),
            ("writer_counts", 0, TWO), ("run_goes_on", 0),
        ],
    ),
    "an overtake leaves generations from before its gap": Sabotage(
        "overtake", "redis.call('DEL', KEYS[3])", "", OVERTAKEN
    ),
    "what an overtake went past has no seen ids": Sabotage(
        "overtake", "'applied', ARGV[2],", "'applied', ARGV[2], 'marked', ARGV[2],",
        [*OVERTAKEN, ("writer_counts", 0, (3, 1)), ("writer_counts", 0, (9, 9))],
    ),
    "the generation of the published run is retired": Sabotage(
        "retire", "generation.run == published", "true",
        [("writer_counts", 0, ONE), ("run_opens", 0), ("retire", 1)],
    ),
    "a run adopts the generation of the published run": Sabotage(
        "adopt", "after == 0 or", "", [("writer_counts", 0, ONE), ("run_adopts", 0)]
    ),
    "a run adopts a generation that lacks its views": Sabotage(
        "adopt", "not is_there[hash]", "false",
        [("writer_counts", 0, ONE), ("run_opens", 0), ("writer_counts", 0, ONE), ("run_adopts", 1), ("run_ends", 0)],
    ),
    "states of a generation in use are swept": Sabotage(
        "sweep", "cjson.decode(each).gid == ARGV[1]", "false", [("writer_counts", 0, ONE), ("sweep", 0)]
    ),
    "a reader adds what its run has counted": Sabotage(
        "answer", "    gids = {}\n", "", [("writer_counts", 0, ONE), ("run_opens", 0), ("run_ends", 0)]
    ),
    "a reader is answered without the generation of its run": Sabotage(
        "answer", "not found", "false", TAKEN_OVER
    ),
}  # fmt: skip


def tell(redis: Redis, place: Path, story: list[Happening]) -> None:
    told = HandOff(redis, place)
    for happening in story:
        told.happens(happening)
        told.everything_holds()
    told.teardown()


@pytest.mark.parametrize("name", SABOTAGES)
def test_a_rule_holds_where_it_is_needed_and_without_it_an_answer_is_wrong(
    redis: Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    script, rule, instead, story = SABOTAGES[name]
    tell(redis, tmp_path, story)

    def sabotaged(asked: str) -> str:
        text = whole(asked)
        assert asked != script or text.count(rule) == 1, f"{script}.lua no longer has {rule!r} once"
        return text.replace(rule, instead) if asked == script else text

    whole = scripts.read_script
    monkeypatch.setattr(scripts, "read_script", sabotaged)
    with pytest.raises(AssertionError) as found:
        tell(redis, tmp_path, story)
    assert "no longer has" not in str(found.value)
