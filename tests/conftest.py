"""What tests stand on: a real stack on a home of its own, and one Spark session for all tests that need it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx
import psutil
import pytest
import structlog
from hypothesis import settings as hypothesis_settings

from infra import terminal
from infra.locks import hold
from infra.settings import Settings, load_settings
from infra.stack import up
from infra.stack.addresses import addresses
from tests.quick import QuickTests
from tests.tiers import IS_SOAK
from torture.environments import QUICK_JAVA

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# The gate tries the same examples in every run: a new example that fails is found by a soak, not by somebody's change.
# Whether something is quick enough is no question for a test: a busy machine takes its time.
hypothesis_settings.register_profile("gate", deadline=None, derandomize=True, database=None)
hypothesis_settings.register_profile("soak", deadline=None)
hypothesis_settings.load_profile("soak" if IS_SOAK else "gate")


LONGEST = (
    "test_oracle",
    "test_dashboard",
    "test_batch",
    "test_alerts",
    "test_archiver",
    "test_evolution_under_load",
    "test_security",
    "test_serving",
)
"""Files that take minutes, the longest first. They begin right after those that need Spark, which one worker has."""
BEGUN = ("system", "browser", "spark", "process", "laws", "unit")
"""The folders of tests, in the order in which they are begun."""


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(QuickTests(), "tidemark-quick-tests")


@pytest.hookimpl(tryfirst=True)  # before xdist looks for groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first: else one process ends with a long file, while the others have nothing to do.

    All files that need the Spark session are one group, for one worker. So are those that ask the collector of the
    shared stack: they count what is in its topics.
    """
    needed: dict[Path, set[str]] = {}
    for item in items:
        needed.setdefault(item.path, set()).update(getattr(item, "fixturenames", ()))

    def turn(item: pytest.Item) -> tuple[int, int, int]:
        folder, file = item.path.parent.name, item.path.stem
        is_long = folder != "unit" and file in LONGEST
        return (
            0 if "spark" in needed[item.path] else 1,
            LONGEST.index(file) if is_long else len(LONGEST),
            BEGUN.index(folder) if folder in BEGUN else 0,
        )

    items.sort(key=turn)
    for item in items:
        for fixture in ("spark", "collector_alone"):
            if fixture in needed[item.path]:
                item.add_marker(pytest.mark.xdist_group(fixture))
                break


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With --dist loadgroup: a group on one worker, and of everything else each file."""
    from xdist.scheduler import LoadGroupScheduling

    class GroupsAndFiles(LoadGroupScheduling):
        def _split_scope(self, nodeid: str) -> str:
            group = super()._split_scope(nodeid)
            return nodeid.partition("::")[0] if group == nodeid else group

    return GroupsAndFiles(config, log) if config.getoption("dist") == "loadgroup" else None


class Stack(NamedTuple):
    """A running stack."""

    settings: Settings
    kafka: str
    redis: str
    collector: str
    serving: str
    secret: str
    """Of the access key `admin`, which may do everything."""

    def client(self, timeout_s: float = 30) -> httpx.Client:
        """Asks the collector with the key `admin`. The caller closes it."""
        return httpx.Client(base_url=self.collector, auth=("admin", self.secret), timeout=timeout_s)

    def asking(self, timeout_s: float = 30) -> httpx.Client:
        """Asks the serving layer with the key `admin`. The caller closes it."""
        return httpx.Client(base_url=self.serving, auth=("admin", self.secret), timeout=timeout_s)

    def status(self) -> dict[str, Any]:
        """What its supervisor says now."""
        found = up.read_status(self.settings)
        assert found is not None, f"nothing runs on {self.settings.home}"
        return found

    def service(self, name: str) -> dict[str, Any]:
        """One service's line of the status."""
        return next(service for service in self.status()["services"] if service["name"] == name)


def repository_files(root: Path) -> list[Path]:
    """Every file that is, or is about to be, in the repository; without git, every file that looks like one."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root, capture_output=True, text=True, check=False,
    ) if shutil.which("git") else None  # fmt: skip
    if listed is not None and listed.returncode == 0:
        return [root / name for name in listed.stdout.split("\0") if name and (root / name).is_file()]
    ignored = {line.strip("/*\n") for line in (root / ".gitignore").open() if not line.startswith("#")} | {".git"}
    return [
        path
        for path in root.rglob("*")
        if path.is_file() and not any(part in ignored or part.endswith(".egg-info") for part in path.parts)
    ]


def wait_until(what: str, condition: Callable[[], Any], deadline_s: float = 60) -> Any:
    """The first true value of `condition`, or a failure that says what was waited for.

    A condition that takes long to evaluate is evaluated less often: what is waited for needs the processors, too.
    """
    end = time.monotonic() + deadline_s
    while True:
        begun = time.monotonic()
        value = condition()
        if value:
            return value
        now = time.monotonic()
        if now > end:
            pytest.fail(f"waited {deadline_s:g} s for {what}, in vain; last value: {value!r}")
        time.sleep(min(max(MIN_PAUSE_S, PAUSES * (now - begun)), MAX_PAUSE_S))


MIN_PAUSE_S, MAX_PAUSE_S = 0.05, 2.0
"""Between two looks at a condition."""
PAUSES = 3.0
"""A pause takes so many times what the look before it took."""


def assert_same(found: dict[Any, dict[str, Any]], expected: dict[Any, dict[str, Any]]) -> None:
    """Answers by group and name are these; of floats all but the last digits."""
    assert found.keys() == expected.keys()
    for group, answers in expected.items():
        for name, answer in answers.items():
            wanted = pytest.approx(answer, rel=1e-9, abs=1e-9) if isinstance(answer, float) else answer
            assert found[group][name] == wanted, (group, name)


KEPT = ("TIDEMARK_JAVA_HOME", "TIDEMARK_JARS_DIR", "TIDEMARK_IVY_SETTINGS", "TIDEMARK_CHROMIUM")
"""What says where this machine has its Java, its jars and its browser."""


@pytest.fixture(autouse=True, scope="session")
def _no_settings_from_outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests see no setting of whoever runs them, except where Java and the jars are, and claim no ports of theirs."""
    patch = pytest.MonkeyPatch()
    for name in os.environ:
        if name.startswith("TIDEMARK_") and name not in KEPT:
            patch.delenv(name)
    patch.setenv("TIDEMARK_CONFIG", os.devnull)
    patch.delenv("COLUMNS", raising=False)  # a test says how wide its terminal is
    for console in (terminal.out, terminal.err):
        patch.setattr(console, "_width", None)
    patch.setenv("TIDEMARK_PORTS_FILE", str(_run_folder(tmp_path_factory) / "ports.json"))
    yield
    patch.undo()


def _run_folder(factory: pytest.TempPathFactory) -> Path:
    """One folder for all processes of a test run: they share the ports of this machine."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


def start_stack(home: Path, **overrides: Any) -> Stack:
    """Bring a stack up on `home`; the caller brings it down with `stop_stack`. What is behind Kafka runs if asked."""
    settings = _stack_settings(home, **overrides)
    up.check_and_fetch(settings)
    secret = up.first_access_key(settings) or ""
    up.start_detached(settings, lambda _status: None)
    return stack_on(home, secret, **overrides)


def stack_on(home: Path, secret: str, **overrides: Any) -> Stack:
    """The stack that runs on `home`, started with the same overrides."""
    settings = _stack_settings(home, **overrides)
    where = addresses(settings)
    return Stack(settings, where.kafka, where.redis, where.collector, where.serving, secret)


def _stack_settings(home: Path, **overrides: Any) -> Settings:
    layers = ("archiver", "scheduler", "speed", "serving", "alerts")
    usual: dict[str, Any] = {f"{layer}_enabled": False for layer in layers} | {"spark_conf": INTERPRETED}
    usual["archive_max_interval_s"] = 1  # tests wait for commits of few events
    return load_settings(**(usual | overrides | {"home": home}))


INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
"""Let Spark interpret its plans: for small data compiling a job takes longer than running it.

What compiled code gives is proved by the tests in tests/spark, by test_serving.py and by the fault programme.
"""


def stop_stack(stack: Stack) -> None:
    """Take it down, if it still runs."""
    if up.read_status(stack.settings) is not None:
        up.stop(stack.settings, lambda _status: None)


class Killed(BaseException):
    """The end of a process, as far as a test can have it."""


def dying_at(step: str) -> Callable[[str], None]:
    """A failpoint that ends whoever comes to this place."""

    def reach(passed: str) -> None:
        if passed == step:
            raise Killed

    return reach


@pytest.fixture(autouse=True, scope="session")
def _plain_tracebacks() -> None:
    """As our processes log them. structlog's own renders every local variable, which takes seconds for a web server."""
    *before, _ = structlog.get_config()["processors"]
    renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(processors=[*before, renderer])


@pytest.fixture(autouse=True, scope="session")
def _hang_up_as_usual() -> None:
    """Under nohup a hang-up is ignored, here and by every process that tests start and then hang up on."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True, scope="session")
def _java_that_starts_quickly() -> Iterator[None]:
    """For every JVM that tests start, in this process or below another, unless whoever runs them says otherwise."""
    patch = pytest.MonkeyPatch()
    if "JDK_JAVA_OPTIONS" not in os.environ:
        patch.setenv("JDK_JAVA_OPTIONS", QUICK_JAVA)
    yield
    patch.undo()


@contextmanager
def shared_stack(run_folder: Path, home: str, **overrides: Any) -> Iterator[Stack]:
    """One stack for all processes of a test run: the first that needs it starts it, the last that had it stops it."""
    folder = run_folder / "shared"
    (folder / home).mkdir(parents=True, exist_ok=True)
    path = folder / home / home  # alone in its folder: what a home leaves outside of itself is seen
    secret, users = folder / f"{home}.secret", folder / f"{home}.users"
    with hold(folder / f"{home}.lock"):
        others = _living(users)
        running = start_stack(path, **overrides) if not others else None
        if running is not None:
            if running.secret:  # a home that was up before has its key already
                secret.write_text(running.secret)
            running = running._replace(secret=secret.read_text())
        users.write_text(json.dumps([*others, os.getpid()]))
    try:
        yield running or stack_on(path, secret.read_text(), **overrides)
    finally:
        with hold(folder / f"{home}.lock"):
            others = [pid for pid in _living(users) if pid != os.getpid()]
            users.write_text(json.dumps(others))
            if not others:
                stop_stack(stack_on(path, "", **overrides))


def _living(users: Path) -> list[int]:
    """The processes that use a shared stack; a worker that crashed is none of them."""
    pids = json.loads(users.read_text()) if users.exists() else []
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack shared by the tests that leave it as they found it. They use topics and keys of their own."""
    with shared_stack(_run_folder(tmp_path_factory), "home") as running:
        yield running


@pytest.fixture(scope="session")
def bare_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Kafka and Redis alone, shared like `stack`, on a home whose name has a space and letters beyond ASCII."""
    with shared_stack(_run_folder(tmp_path_factory), "hôme nº 1", collector_enabled=False) as running:
        yield running


@pytest.fixture
def collector_alone(stack: Stack) -> Iterator[None]:
    """Nobody else asks the collector of the shared stack meanwhile: its topics and its limits can be counted."""
    with hold(stack.settings.home.with_name("collector.lock")):
        yield


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """One Spark session for all tests that need one."""
    from infra.spark.session import spark_session

    settings = load_settings(home=tmp_path_factory.mktemp("spark") / "home", spark_driver_memory="3g")
    session = spark_session(settings, "tidemark-tests")  # it lives through what are hundreds of sessions elsewhere
    yield session
    session.stop()


@contextmanager
def interpreted(session: SparkSession) -> Iterator[SparkSession]:
    """Let a session interpret its plans, while the block runs."""
    before = {name: session.conf.get(name) for name in INTERPRETED}
    for name, value in INTERPRETED.items():
        session.conf.set(name, value)
    yield session
    for name, known in before.items():
        session.conf.set(name, known)
