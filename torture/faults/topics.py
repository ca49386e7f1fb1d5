"""Topics that change: partitions are added, the topic of another source is deleted and created again."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.clients.kafka_admin import KafkaAdmin
from infra.disk import replace_file
from infra.home import read_json
from master_dataset.kafka.topics import alter_topic, delete_topic, existing_topics
from torture.errors import BrokenPromise, NotInTime, TortureError
from torture.fault import Fault
from torture.installation import Installation
from torture.wait import wait_for

MAX_PARTITIONS = 8
REFUSED_S = 90.0
FOLLOWERS = ("collector", "archiver", "speed", "serving")
OTHER = "brittle"
DECLARATION = f'''"""A second source, whose topic is deleted."""

from views.aggregates import Count
from views.source import Source
from views.view import View

{OTHER} = Source("{OTHER}", fields="event_id string, event_time timestamp", partitions=1)
{OTHER}_count = View("{OTHER}_count", source={OTHER}, grain="1h", answers={{"events": Count()}})
'''


@contextmanager
def strike_partitions(installation: Installation, chance: random.Random) -> Iterator[None]:
    """Add a partition: the archiver stops until the declaration has it too."""
    del chance
    declaring = _declaring(installation)  # before anything is altered: there may be none
    admin = _admin(installation)
    topic = installation.source_topic
    count = existing_topics(admin)[topic]
    if count >= MAX_PARTITIONS:
        raise TortureError(f"Topic {topic!r} has {count} partitions already; each further one makes all slower.")
    alter_topic(admin, topic, count + 1, {})
    try:
        yield
    finally:
        declare_partitions(declaring, installation.source_name, count + 1)


@contextmanager
def strike_other_topic(installation: Installation, chance: random.Random) -> Iterator[None]:
    """Delete the topic of another source: that source is refused, and no other."""
    del chance
    declared = installation.views_dir / f"{OTHER}.py"
    replace_file(declared, DECLARATION)
    try:
        _begin_again(installation)
        installation.processes.wait_ready(FOLLOWERS)
        _post_one(installation)
        wait_for(f"the event of {OTHER}", lambda: _status(installation).get("rows"), deadline_s=60)
        admin = _admin(installation)
        delete_topic(admin, OTHER)
        try:
            wait_for(f"the refusal of {OTHER}", lambda: _status(installation).get("refused"), REFUSED_S)
        except NotInTime:
            raise BrokenPromise(
                f"The topic of source {OTHER!r} was deleted. The archiver should refuse that source, and after "
                f"{REFUSED_S:g} s it says of it: {_status(installation)}"
            ) from None
        yield
    finally:
        declared.unlink()
        _begin_again(installation)


def declare_partitions(path: Path, source: str, count: int) -> None:
    r"""`Source("shop", ...)` in a file -> `Source("shop", partitions=4, ...)`."""
    text = path.read_text(encoding="utf-8")
    without = re.sub(r" ?\bpartitions=\d+,", "", text)
    changed = re.sub(rf'(Source\(\s*(?:name=)?"{source}",)', rf"\1 partitions={count},", without, count=1)
    if changed == without:
        raise TortureError(f"{path} does not declare the source {source!r} in a form that is known here.")
    replace_file(path, changed)


def _declaring(installation: Installation) -> Path:
    """The file in which `declare_partitions` finds the source."""
    form = re.compile(rf'Source\(\s*(?:name=)?"{installation.source_name}",')
    for path in sorted(installation.views_dir.glob("*.py")):
        if form.search(path.read_text(encoding="utf-8")):
            return path
    raise TortureError(
        f"No file in {installation.views_dir} declares the source {installation.source_name!r} in a form that is known "
        "here, so its partitions cannot be changed."
    )


def _admin(installation: Installation) -> KafkaAdmin:
    return KafkaAdmin(installation.settings, installation.addresses.kafka)


def _begin_again(installation: Installation) -> None:
    for service in FOLLOWERS:
        installation.processes.kill(service)


def _post_one(installation: Installation) -> None:
    with installation.client("collector") as client:
        answer = client.post(f"/events/{OTHER}", json={"event_id": "one"})
    if answer.status_code >= 300:
        raise TortureError(f"The collector refused an event of {OTHER!r}: {answer.status_code} {answer.text[:200]}")


def _status(installation: Installation) -> dict[str, object]:
    """The archiver's status of the other source."""
    status = read_json(installation.home.run / "archiver.json") or {}
    found: dict[str, object] = status.get("sources", {}).get(OTHER, {})
    return found


FAULTS = [
    Fault("partition added", "topics", strike_partitions, 5, recovery_s=120, weight=0.3, cost_s=20),
    Fault("topic of another source deleted", "topics", strike_other_topic, 5, recovery_s=150, cost_s=90),
]
