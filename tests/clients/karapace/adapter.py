"""A pytest plugin for Karapace's tests: they ask our registry, over HTTP, instead of one that they start themselves.

It runs in Karapace's checkout and in our environment. What the tests import is Karapace's own where it can be imported;
packages that are not installed here are empty, because the tests use only what Karapace makes of them.

Two things of an answer are not held to Karapace's, so that tests check the rest of it: the texts of messages, and
where ids begin. Each test sees ids from 1 on.
"""

from __future__ import annotations

import asyncio
import importlib.abc
import importlib.machinery
import inspect
import itertools
import json
import os
import re
import sys
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import confluent_kafka
import httpx
import pytest

PLAIN = (
    "karapace",
    "karapace.api",
    "karapace.api.routers",
    "karapace.api.routers.errors",
    "karapace.core",
    "karapace.core.client",
    "karapace.core.compatibility",
    "karapace.core.errors",
    "karapace.core.protobuf",
    "karapace.core.protobuf.kotlin_wrapper",
    "karapace.core.schema_type",
    "karapace.core.typing",
    "karapace.core.utils",
)
"""Karapace's modules that the tests use. Its others belong to the server, which is not started here."""
MESSAGES = {"message", "messages"}
"""Members of answers that are texts for people: they are there, and say what they say."""
ABSENT = ("aiohttp", "aiokafka", "karapace", "tenacity")
"""Packages that are imported on the way, and not used: every name of theirs is there, and means nothing."""


class Nothing:
    """Whatever is asked of a package that is absent: a base class, a decorator, an argument."""

    def __init_subclass__(cls, **_options: Any) -> None:
        pass

    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        pass

    def __call__(self, *arguments: Any, **_options: Any) -> Any:
        """A decorator gives what it decorates."""
        return arguments[0] if arguments else self

    def __class_getitem__(cls, _item: Any) -> type[Nothing]:
        return cls


class Absent(ModuleType):
    """A module that has every name."""

    __path__: Sequence[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (Exception,) if name.endswith(("Error", "Exception", "Available")) else (Nothing,), {})
        setattr(self, name, value)
        return value


class AbsentModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives a module that has every name for each module that is not there."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] in ABSENT and name not in PLAIN:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__name__ == "karapace.core.schema_models":
            module.parse_jsonschema_definition = JsonSchema  # type: ignore[attr-defined]
        if module.__name__ == "karapace.core.schema_reader":
            from karapace.core.schema_type import SchemaType

            module.SchemaType = SchemaType  # type: ignore[attr-defined]
        if module.__name__ == "karapace.rapu":
            module.is_success = lambda status: 200 <= status.value < 300  # type: ignore[attr-defined]
        if module.__name__ == "karapace.core.kafka.producer":
            module.KafkaProducer = Producer  # type: ignore[attr-defined]
        if module.__name__ == "karapace.api.controller":
            from karapace.api.routers.errors import SchemaErrorMessages

            module.SchemaErrorMessages = SchemaErrorMessages  # type: ignore[attr-defined]


class JsonSchema:
    """A parsed JSON Schema, of which the tests take the schema."""

    def __init__(self, text: str) -> None:
        self.schema = json.loads(text)


class Producer:
    """What writes records beside the registry."""

    def __init__(self, bootstrap_servers: Sequence[str]) -> None:
        self._producer = confluent_kafka.Producer({"bootstrap.servers": ",".join(bootstrap_servers), "acks": "all"})

    def send(self, topic: str, *, key: bytes, value: bytes | None) -> None:
        sent = None if value is None else json.dumps(Ids.sent(json.loads(value))).encode()
        self._producer.produce(topic, key=key, value=sent)

    def flush(self) -> None:
        assert self._producer.flush(60) == 0


class AnyText(str):
    """The text of a message, or several: equal to whatever is expected there."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str | list)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__

    def __contains__(self, _part: object) -> bool:
        return True

    def startswith(self, *_prefix: Any) -> bool:
        return True


class Ids:
    """The ids of one test, which are raised by the last one that was given before it."""

    PATH = re.compile(r"^(/?schemas/ids/)([1-9][0-9]*)(?![^/?])")
    base = 0

    @classmethod
    def sent(cls, body: Any) -> Any:
        """A body with an id that the test chose."""
        given = body.get("id") if isinstance(body, dict) else None
        return body | {"id": given + cls.base} if type(given) is int else body

    @classmethod
    def sent_path(cls, path: str) -> str:
        return cls.PATH.sub(lambda found: f"{found[1]}{int(found[2]) + cls.base}", path)

    @classmethod
    def answered(cls, value: Any) -> Any:
        """The answer with the ids that the test expects."""
        if isinstance(value, list):
            return [cls.answered(each) for each in value]
        if isinstance(value, dict):
            return {
                name: each - cls.base if name == "id" and type(each) is int else cls.answered(each)
                for name, each in value.items()
            }
        return value


class Result:
    """An answer, as the tests read it."""

    def __init__(self, answer: httpx.Response) -> None:
        self.status_code = answer.status_code
        self.ok = answer.is_success
        self.headers = answer.headers
        self.json_result = Ids.answered(answer.json()) if answer.content else {}
        if isinstance(self.json_result, dict):
            for name in MESSAGES & self.json_result.keys():
                self.json_result[name] = AnyText(self.json_result[name])

    def json(self) -> Any:
        return self.json_result


def client(url: str) -> Any:
    """Karapace's client, sending by httpx. The URL has the key."""
    from karapace.core.client import Client

    class OverHttpx(Client):
        def __init__(self) -> None:
            self._http = httpx.AsyncClient(timeout=60)

        def path_for(self, path: str) -> str:
            return f"{url}/{Ids.sent_path(path).lstrip('/')}"

        async def close(self) -> None:
            await self._http.aclose()

        async def _send(self, method: str, path: str, **what: Any) -> Result:
            answer = await self._http.request(method, self.path_for(path), **what)
            return Result(answer)

        async def get(
            self,
            path: str,
            json: Any = None,
            headers: Mapping[str, str] | None = None,
            auth: Any = None,
            params: Mapping[str, str] | None = None,
            json_response: bool = True,
        ) -> Result:
            return await self._send("GET", path, json=json, headers=headers, params=params)

        async def delete(
            self,
            path: str,
            headers: Mapping[str, str] | None = None,
            auth: Any = None,
            params: Mapping[str, str] | None = None,
        ) -> Result:
            return await self._send("DELETE", path, headers=headers, params=params)

        async def post(
            self,
            path: str,
            json: Any,
            headers: Mapping[str, str] | None = None,
            auth: Any = None,
            params: Mapping[str, str] | None = None,
        ) -> Result:
            return await self._send("POST", path, json=Ids.sent(json), headers=headers or SENT, params=params)

        async def put(self, path: str, json: Any, headers: Mapping[str, str] | None = None, auth: Any = None) -> Result:
            return await self._send("PUT", path, json=json, headers=headers or SENT)

        async def put_with_data(
            self, path: str, data: Any, headers: Mapping[str, str] | None, auth: Any = None
        ) -> Result:
            return await self._send("PUT", path, content=data, headers=headers)

    return OverHttpx()


SENT = {"Content-Type": "application/vnd.schemaregistry.v1+json"}


def empty(url: str) -> int:
    """Delete every subject, those that others refer to last, and every level: each test begins with nothing.

    Returns the last id that was given.
    """
    with httpx.Client(timeout=60) as http:

        def names(path: str) -> list[str]:
            return [name.replace("%", "%25").replace("/", "%2F") for name in http.get(url + path).json()]

        http.put(f"{url}/mode", json={"mode": "READWRITE"}).raise_for_status()
        http.put(f"{url}/config", json={"compatibility": "BACKWARD"}).raise_for_status()
        while subjects := names("/subjects?deleted=true"):
            for subject in subjects:
                http.delete(f"{url}/mode/{subject}")
                http.delete(f"{url}/config/{subject}")
                http.delete(f"{url}/subjects/{subject}")
                http.delete(f"{url}/subjects/{subject}?permanent=true")
            assert len(names("/subjects?deleted=true")) < len(subjects), f"cannot be deleted: {subjects}"
        last: int = http.post(f"{url}/subjects/last/versions", json={"schema": '"int"'}).raise_for_status().json()["id"]
        http.delete(f"{url}/subjects/last").raise_for_status()
        http.delete(f"{url}/subjects/last?permanent=true").raise_for_status()
        return last


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--report", help="write what became of each test to this file, as JSON")


def pytest_configure(config: pytest.Config) -> None:
    numbers = itertools.count(1)  # the names that tests make of them are those of every run, in the order of making
    uuid.uuid4 = lambda: uuid.UUID(int=next(numbers) << 96)
    sys.meta_path.insert(0, AbsentModules())
    config.pluginmanager.register(Report(config.getoption("--report")), "report")


class Report:
    """What became of each test, by its name."""

    def __init__(self, file: str | None) -> None:
        self.file = file
        self.tests: dict[str, str] = {}

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.tests[report.nodeid] = str(report.longrepr)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.tests[report.nodeid] = f"{crash.path}:{crash.lineno}: {crash.message}" if crash else "failed"
        elif report.skipped:
            self.tests.setdefault(report.nodeid, "skipped")
        elif report.when == "call":
            self.tests.setdefault(report.nodeid, "passed")

    def pytest_sessionfinish(self) -> None:
        if self.file:
            Path(self.file).write_text(json.dumps(self.tests))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Function]) -> None:
    """Tests that are repeated with other settings of Karapace's run once: ours has none of these."""

    def is_repeated(item: pytest.Function) -> bool:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        return bool(params.get("registry_cluster", {}).get("config"))

    config.hook.pytest_deselected(items=[item for item in items if is_repeated(item)])
    items[:] = [item for item in items if not is_repeated(item)]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine in the loop of its client."""
    if not inspect.iscoroutinefunction(pyfuncitem.function):
        return None
    wanted = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.function).parameters}

    async def run() -> None:
        await pyfuncitem.function(**wanted)
        for each in wanted.values():
            if hasattr(each, "_http"):
                await each.close()

    asyncio.run(asyncio.wait_for(run(), 120))
    return True


@pytest.fixture
def registry_url() -> str:
    """The address of an empty registry."""
    url = os.environ["KARAPACE_REGISTRY"]
    Ids.base = empty(url)
    return url


@pytest.fixture
def registry_cluster(registry_url: str) -> SimpleNamespace:
    """Where the registry is, and its topic."""
    return SimpleNamespace(schemas_topic="_schemas", url=registry_url)


@pytest.fixture
def registry_async_client(registry_cluster: SimpleNamespace) -> Any:
    """Asks the registry."""
    return client(registry_cluster.url)


@pytest.fixture
def kafka_servers() -> SimpleNamespace:
    """The Kafka of the registry."""
    return SimpleNamespace(bootstrap_servers=[os.environ["KARAPACE_KAFKA"]])
