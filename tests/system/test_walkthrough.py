"""The commands that the manual shows, run as they stand there, page after page, on one fresh home.

Every `sh` block of every page is run, unless NOT_RUN says why not. A page that gets its first block joins PAGES.
On the way the home is moved, backed up, restored and given a new Kafka, as docs/operations.md says. Each time it
answers what it answered before.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import INTERPRETED, repository_files, wait_until

ROOT = Path(__file__).parents[2]
ENOUGH_S = 240
"""How long to wait for a stack on a busy machine."""
PAGES = (
    "README.md",
    "docs/collector.md",
    "docs/doors.md",
    "docs/serving.md",
    "docs/alerts.md",
    "docs/import.md",
    "docs/speed.md",
    "docs/batch.md",
    "docs/catalog.md",
    "docs/operations.md",
    "docs/security.md",
    "docs/torture.md",
    "CONTRIBUTING.md",
)
"""In the order in which a reader may follow them: what a page asks, one before it has sent."""
OWN_TESTS = ("examples/shop/README.md",)
"""Pages that another test runs."""
NOT_RUN = {
    "make demo": "starts a stack of its own; tests/unit/test_demo.py runs its parts",
    "make setup": "installs what this test runs on",
    "make test-quick": "runs tests, as this one is run",
    "make check": "a target of its own in the gate",
    "make test-faults": "a target of its own in the gate",
    "make soak": "takes hours",
    "tidemark up": "the stack runs already, and this does not return",
    "TIDEMARK_EXAMPLES=web,logs tidemark up": "as above",
    "TIDEMARK_EXAMPLES=web,cloudevents,segment,posthog,otel_logs,syslog tidemark up": "as above",
    "TIDEMARK_EXAMPLES=all tidemark up": "as above",
    "TIDEMARK_WITH_EXAMPLES=false tidemark up": "as above",
    "tidemark batch run --full": "takes as long as the run before it, which was a full one too: it was the first",
    "tidemark batch rollback 1 --source web": "needs a second run; tests/unit/test_batch_commands.py has two",
    "tidemark views check slow_pages --spark --events 5000": "starts Spark again, as tests/spark/test_catalog.py does",
    "python -m speed_layer": "runs on another machine; tests/system/test_speed_layer.py starts the same process",
    "TIDEMARK_SPARK_MASTER=spark://host:7077 python -m speed_layer": "needs a Spark cluster",
    'PYSPARK_PYTHON="$(command -v python)" spark-submit --master spark://host:7077 '
    '--jars "$(tidemark jars --for-spark)" speed_layer/__main__.py': "needs a Spark cluster",
    "tidemark up --detach && tidemark down": "the stack runs already",
    "tidemark systemd-unit | sudo tee /etc/systemd/system/tidemark.service": "needs systemd",
    "sudo systemctl daemon-reload": "as above",
    "sudo systemctl enable --now tidemark": "as above",
    'REDISCLI_AUTH="$(cat .tidemark/secrets/redis)" redis-cli -p 6379 --user tidemark': "asks for input",
    "tidemark master retain web --days 400 --dry-run": "starts Spark, as the next line does again",
    "tidemark kafka-users add shop --produce 'orders*' --consume payments": (
        "needs kafka_auth, which tests/system/test_kafka_auth.py turns on"
    ),
    "tidemark torture --shots 90 --minutes 15": "takes a quarter of an hour; tests/torture runs shorter ones",
    "tidemark torture --seed 4711 --kinds kill,redis": "as above",
    "tidemark torture --copy-of .tidemark --source web": "as above",
}
"""Commands that are shown and not run here, each with the reason."""
LOG_LINE = b'203.0.113.7 - ann [%s] "GET %s HTTP/1.1" 200 512 "-" "curl/8"\n'
FILES = {
    "access.log": LOG_LINE % (b"16/Nov/2026:02:40:11 +0000", b"/a"),
    "access.log.1.gz": gzip.compress(LOG_LINE % (b"15/Nov/2026:02:40:11 +0000", b"/b"), mtime=0),
    "orders.csv": b"event_time,name,properties.url\n2026-11-16 02:40:11,order,/checkout\nnever,order,/checkout\n",
}
"""What a reader has in the folder, as far as pages name it."""


class Snippet(NamedTuple):
    """One command, or several lines that are one."""

    page: str
    text: str


class Printed(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    stdout: str
    stderr: str


def snippets() -> Iterator[Snippet]:
    """Every command in the `sh` blocks of the pages, in order."""
    for page in PAGES:
        for block in blocks(page):
            yield from (Snippet(page, text) for text in commands(block))


def blocks(page: str, language: str = "sh") -> list[str]:
    """The blocks of a language, those in lists among them, without their indentation."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.finditer(rf"^( *)```{language}\n(.*?)^\1```", text, flags=re.DOTALL | re.MULTILINE)
    return [textwrap.dedent(each[2]) for each in found]


def commands(block: str) -> Iterator[str]:
    """The commands of a block, without comments: a line, and those after it while a quote or a backslash is open."""
    pending = ""
    for line in block.splitlines():
        pending += line
        if pending.endswith("\\"):
            pending = pending[:-1].rstrip() + " "
            continue
        try:
            shlex.split(pending, comments=True)
        except ValueError:  # a quote is open
            pending += "\n"
            continue
        pending = re.sub(r"\s+", " ", pending) if "\n" not in pending else pending
        if command := re.sub(r" # .*|^#.*", "", pending).strip().replace("  ", " "):
            yield command
        pending = ""
    assert not pending, f"this command has no end: {pending}"


class Reader:
    """Somebody who types what the pages say, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tool = folder / ".venv" / "bin" / "tidemark"
        tool.parent.mkdir(parents=True)
        tool.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m tidemark "$@"\n', encoding="utf-8")
        tool.chmod(0o755)
        # An answer that is no 2xx fails the command, as does none. Pages show curl as short as it can be.
        (folder / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\nmax-time = 120\n", encoding="utf-8")
        for name, content in FILES.items():
            (folder / name).write_bytes(content)
        (python,) = re.findall(
            r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
        )
        (folder / "my_views").mkdir()
        (folder / "my_views" / "visits.py").write_text(python, encoding="utf-8")
        own = {name: value for name, value in os.environ.items() if not name.startswith("TIDEMARK_")}
        jars = {name: os.environ[name] for name in ("TIDEMARK_JARS_DIR",) if name in os.environ}
        self.environment = {
            **own, **jars, "PYTHONPATH": str(ROOT), "CURL_HOME": str(folder), "COLUMNS": "200",
            "TIDEMARK_SPARK_CONF": json.dumps(INTERPRETED), "TIDEMARK_ARCHIVE_MAX_INTERVAL_S": "1",
        }  # fmt: skip
        self.actual = {
            "/mnt/": f"{folder}/mnt/",
            "/srv/restored": f"{folder}/restored",
            "/srv/tidemark ": f"{folder}/.tidemark ",  # where the README made it
        }
        """What pages show, and what it is here: disks, and addresses when they are known."""
        for disk in ("large", "backups"):
            (folder / "mnt" / disk).mkdir(parents=True)

    def run(self, command: str) -> Printed:
        """Run it by a shell. What it exports stays."""
        script = command
        for shown, actual in self.actual.items():
            script = script.replace(shown, actual)
        if command.startswith("curl -N "):
            return self._first_message(script)
        kept = self.folder / "environment"
        done = subprocess.run(
            ["bash", "-c", f"{script}\ncode=$?\nenv -0 > {shlex.quote(str(kept))}\nexit $code"],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        if command.startswith("export "):
            self.environment = dict(each.split("=", 1) for each in kept.read_text().split("\0") if each)
        return Printed(done.returncode, done.stdout, done.stderr)

    def _first_message(self, script: str) -> Printed:
        """Of a stream that never ends, until something came."""
        streaming = subprocess.Popen(
            ["bash", "-c", f"exec {script}"],
            cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        with streaming:
            assert streaming.stdout is not None
            assert streaming.stderr is not None
            first = streaming.stdout.readline()
            streaming.terminate()
            return Printed(0 if first else 1, first, streaming.stderr.read())

    def start(self, command: str) -> None:
        """Start the stack, and note its first key and its addresses, as the pages ask one to.

        The README's project is alone in its home; here the examples of the other pages run beside it.
        """
        self.environment["TIDEMARK_WITH_EXAMPLES"] = "true"
        printed = self.run(command)
        if self.environment.get("TIDEMARK_HOME") == self.actual["/srv/restored"]:  # beside a Kafka that is new
            assert "tidemark master rebase web" in printed.stderr, printed
            assert "everything else is up" in printed.stderr, printed
        else:
            assert printed.code == 0, printed
        if "SECRET" not in self.environment:
            secret = re.search(r"name admin, secret (\S+)", printed.stdout + printed.stderr)
            assert secret, printed
            self.environment["SECRET"] = secret[1]
        status = json.loads(self.run("tidemark status --output json").stdout)
        actual = {each["name"]: each["address"] for each in status["services"]}
        self.actual["http://127.0.0.1:8080"] = actual["collector"]
        self.actual["http://127.0.0.1:8090"] = actual["serving"]

    def hits(self, view: str) -> dict[str, Any]:
        """What a view answers about all time: its rows, and whether all acknowledged events are in them."""
        period = "from=2020-01-01T00:00:00Z&grain=all&by=url"
        printed = self.run(f"curl -u admin:$SECRET 'http://127.0.0.1:8090/views/{view}/query?{period}'")
        assert printed.code == 0, printed
        answer = json.loads(printed.stdout)
        meta = answer["meta"]
        is_whole = meta["complete"] and meta["speed"]["lag_events"] == 0
        return {"rows": answer["rows"], "is_whole": is_whole, "meta": meta}

    def wait_until_archived(self, *sources: str) -> None:
        """Until a batch run would compute all events of these sources."""

        def is_archived() -> bool:
            behind = json.loads(self.run("tidemark master status --output json").stdout)
            return all(each["behind Kafka"] == 0 for each in behind if each["source"] in sources)

        wait_until(f"{sources} to be archived", is_archived, ENOUGH_S)

    def wait_until_whole(self, *views: str) -> dict[str, Any]:
        """The rows of views, with everything that was acknowledged."""
        found: dict[str, Any] = {}

        def is_whole() -> bool:
            found.update({view: self.hits(view) for view in views})
            return all(each["is_whole"] for each in found.values())

        try:
            wait_until(f"whole answers of {views}", is_whole, ENOUGH_S)
        except pytest.fail.Exception as error:
            raise AssertionError(f"{error}: {found}") from None
        return {view: each["rows"] for view, each in found.items()}


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    reader.run("tidemark down")


def rows(printed: Printed) -> list[dict[str, Any]]:
    with suppress(ValueError):
        return list(json.loads(printed.stdout)["rows"])
    return []


def stored_as_shown(printed: Printed) -> bool:
    """The README's own reply, but for the time."""
    shown = re.findall(
        r"^```json\n(\[.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    without_time = [
        [{name: value for name, value in each.items() if name != "timestamp"} for each in json.loads(text)]
        for text in (shown[0], printed.stdout)
    ]
    return without_time[0] == without_time[1]


def counted_once(printed: Printed) -> bool:
    (row,) = rows(printed)
    return (row["url"], row["hits"], row["visitors"]) == ("/", 2, 2)


CHECKS: dict[str, Callable[[Printed], bool]] = {
    "curl -u admin:$SECRET http://127.0.0.1:8080/events/site": stored_as_shown,
    "curl -u admin:$SECRET 'http://127.0.0.1:8090/views/visits/query": counted_once,
    "curl -u admin:$SECRET 'http://127.0.0.1:8090/views/page_hits/query": lambda printed: (
        rows(printed)[0]["url"] == "/"
    ),
    "tidemark query page_hits": lambda printed: "│ /" in printed.stdout,
    "curl -u admin:$SECRET http://127.0.0.1:8090/query": lambda printed: (
        len(json.loads(printed.stdout)["answers"]) == 2
    ),
    "tidemark alerts list": lambda printed: "slow_page" in printed.stdout,
    "tidemark import orders.csv": lambda printed: "never" in printed.stdout + printed.stderr,
    "tidemark views show slow_pages": lambda printed: "SELECT" in printed.stdout,
}
"""What a command has to print beside ending well. It is repeated until it does, as a person would."""
SENDS = "curl -u admin:$SECRET http://127.0.0.1:8080/events/"
ONCE = (
    SENDS, "tidemark import", "tidemark batch prune", "tidemark views new", "tidemark down", "cp -a", "tidemark backup",
    "tidemark restore", "tidemark master retain", "tidemark master rebase",
)  # fmt: skip
"""Commands that do something: they have to do it at the first attempt."""


STOPS = "tidemark down"
STARTS = "tidemark up --detach"
MOVED = ("visits", "page_hits")
"""Views of the README and of the examples. What they answer outlives what docs/operations.md does to the home."""


def test_commands_of_the_manual_do_what_it_says(reader: Reader) -> None:
    answered: dict[str, Any] = {}
    for page, command in snippets():
        if command in NOT_RUN:
            continue
        if command.startswith(STARTS):
            reader.start(command)
            for view, rows_before in answered.items():
                wait_until(
                    f"{view} as before {page}", lambda v=view, r=rows_before: reader.hits(v)["rows"] == r, ENOUGH_S
                )
            continue
        if command.startswith(STOPS) and not answered:
            answered = reader.wait_until_whole(*MOVED)
            assert all(answered.values()), answered
        if command.startswith("tidemark batch run"):
            reader.wait_until_archived(*(re.findall(r"--source (\w+)", command) or ("site", "web")))
        do(reader, page, command)
    # The last stack that was started has a Kafka without the old records. One source was told so.
    assert {view: reader.hits(view)["rows"] for view in MOVED} == answered
    assert reader.wait_until_whole("page_hits") == {"page_hits": answered["page_hits"]}


def do(reader: Reader, page: str, command: str) -> None:
    """Run a command until it does what it should, as a person would."""
    check = next((check for begins, check in CHECKS.items() if command.startswith(begins)), None)
    last: list[Printed] = []

    def works() -> bool:
        last[:] = [reader.run(command)]
        with suppress(LookupError, ValueError):
            return last[0].code == 0 and (check is None or check(last[0]))
        return False

    if command.startswith(ONCE):
        assert works(), (page, command, last)
        return
    try:
        wait_until(f"{command!r} of {page}", works, ENOUGH_S)
    except pytest.fail.Exception as error:
        raise AssertionError(f"{error}; the last time it printed {last}") from None


def test_every_command_in_the_manual_is_run_or_says_why_not() -> None:
    shown = {snippet.text for snippet in snippets()}
    assert NOT_RUN.keys() <= shown, "what no page shows needs no reason"
    others = {
        str(path.relative_to(ROOT)) for path in repository_files(ROOT)
        if path.suffix == ".md" and blocks(str(path.relative_to(ROOT)))
    }  # fmt: skip
    assert others - {*OWN_TESTS} == {page for page in PAGES if blocks(page)}, "PAGES lists the pages with commands"
    assert not [page for page in PAGES if blocks(page, "console")], "nobody would run them"
    for begins in (*CHECKS, *ONCE):
        assert any(text.startswith(begins) for text in shown), f"no page shows {begins!r} any more"
