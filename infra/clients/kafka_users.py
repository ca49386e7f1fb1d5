"""Users of a Kafka cluster with SCRAM passwords, and what each may do with which topics."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, NamedTuple

from infra.errors import InfraError

ITERATIONS = 4096
"""Kafka's minimum. Passwords have 256 random bits: nobody guesses one, however fast the hash."""
TIMEOUT_S = 10.0
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
RESERVED = ("tidemark", "controller", "setup")
"""Super users of our own broker (`infra/stack/kafka_access.py`)."""
TOPIC = re.compile(r"[A-Za-z0-9_.-]{1,249}\*?|\*")


class KafkaUserError(InfraError):
    """A user cannot be made, listed or removed."""


class KafkaUser(NamedTuple):
    """One user; of topics `web*` means all that begin with `web`."""

    name: str
    produce: list[str]
    consume: list[str]


class KafkaUsers:
    """The users of the cluster that a client configuration leads to. Its own user must be a super user."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._api = _api()
        self._admin = self._api.AdminClient({**config, "log_level": 0})

    def put(self, name: str, password: str) -> None:
        """Make a user, or give one another password."""
        info = self._api.ScramCredentialInfo(self._api.ScramMechanism.SCRAM_SHA_512, ITERATIONS)
        change = self._api.UserScramCredentialUpsertion(name, info, password.encode())
        _finish(self._admin.alter_user_scram_credentials([change], request_timeout=TIMEOUT_S))

    def add(self, name: str, produce: Iterable[str], consume: Iterable[str]) -> str:
        """Make a user that may write and read these topics, and return its password, which can never be read again."""
        written, read = list(dict.fromkeys(produce)), list(dict.fromkeys(consume))
        if not NAME.fullmatch(name):
            raise KafkaUserError(
                f"{name!r} is no name for a user: "
                "letters, digits, '.', '_' and '-', at most 64, a letter or digit first."
            )
        if name in RESERVED:
            raise KafkaUserError(f"{name!r} is a user of the broker itself. Choose another name.")
        if wrong := [topic for topic in (*written, *read) if not TOPIC.fullmatch(topic)]:
            raise KafkaUserError(f"{wrong[0]!r} is no topic. Write its name, or a beginning and a star, like web*.")
        if not written and not read:
            raise KafkaUserError(f"User {name!r}: name at least one topic to produce to or to consume.")
        if name in (user.name for user in self.read()):
            raise KafkaUserError(f"There is a user {name!r} already. Remove it first, or choose another name.")
        password = secrets.token_urlsafe(32)
        # The rights come first: a crash in between leaves rights of nobody, or of a name that was removed before and
        # whose password nobody knows; such a user is listed, and can be removed again.
        # Rights that a crash left here are not inherited.
        _finish(self._admin.delete_acls([_filter(name)], request_timeout=TIMEOUT_S))
        _finish(self._admin.create_acls(_rights(name, written, read), request_timeout=TIMEOUT_S))
        self.put(name, password)
        return password

    def remove(self, name: str) -> None:
        """Give a user a password that nobody knows, and take all its rights. Its name is free for another `add`.

        The credential itself stays, because Kafka 4.2.1 loses others with a deleted one. When the broker starts, it
        applies the whole log of its metadata as one change. If a user without a credential comes first in that change,
        `ScramDelta.apply` drops all that follow, our own services among them.
        """
        if name in RESERVED:
            raise KafkaUserError(f"{name!r} is a user of the broker itself, which needs it. It cannot be removed.")
        if name not in (user.name for user in self.read()):
            raise KafkaUserError(f"There is no user {name!r}. `tidemark kafka-users list` shows all users.")
        # The password comes first: a crash in between leaves a user that is still listed and can be removed again.
        self.put(name, secrets.token_urlsafe(32))
        _finish(self._admin.delete_acls([_filter(name)], request_timeout=TIMEOUT_S))

    def read(self) -> list[KafkaUser]:
        """All users but the broker's own, by name. Who has no rights at all was removed."""
        api, owners, topics = self._api, set[str](), dict[tuple[str, Any], list[str]]()
        for right in self._rights():
            owner = right.principal.removeprefix("User:")
            owners.add(owner)
            if right.restype == api.ResourceType.TOPIC:
                star = "*" if right.resource_pattern_type == api.ResourcePatternType.PREFIXED else ""
                topics.setdefault((owner, right.operation), []).append(right.name + star)
        return [
            KafkaUser(
                name,
                sorted(topics.get((name, api.AclOperation.WRITE), [])),
                sorted(topics.get((name, api.AclOperation.READ), [])),
            )
            for name in sorted((self._names() & owners).difference(RESERVED))
        ]

    def _names(self) -> set[str]:
        with _translated():
            return set(self._admin.describe_user_scram_credentials(request_timeout=TIMEOUT_S).result(2 * TIMEOUT_S))

    def _rights(self) -> list[Any]:
        with _translated():
            found: list[Any] = self._admin.describe_acls(_filter(None), request_timeout=TIMEOUT_S).result(2 * TIMEOUT_S)
        return found


def _api() -> Any:
    """confluent-kafka's module for administration, whose types leave some of it out. Loaded when needed."""
    from confluent_kafka import admin

    return admin


def _rights(name: str, produce: list[str], consume: list[str]) -> list[Any]:
    api = _api()

    def right(kind: Any, resource: str, operation: Any) -> Any:
        is_prefix = resource.endswith("*") and resource != "*"
        pattern = api.ResourcePatternType.PREFIXED if is_prefix else api.ResourcePatternType.LITERAL
        resource = resource.removesuffix("*") if is_prefix else resource
        return api.AclBinding(kind, resource, pattern, f"User:{name}", "*", operation, api.AclPermissionType.ALLOW)

    return [
        *(right(api.ResourceType.TOPIC, topic, api.AclOperation.WRITE) for topic in produce),
        *(right(api.ResourceType.TOPIC, topic, api.AclOperation.READ) for topic in consume),
        *([right(api.ResourceType.GROUP, f"{name}*", api.AclOperation.READ)] if consume else []),
    ]


def _filter(name: str | None) -> Any:
    api = _api()
    who = None if name is None else f"User:{name}"
    anything = (api.AclOperation.ANY, api.AclPermissionType.ANY)
    return api.AclBindingFilter(api.ResourceType.ANY, None, api.ResourcePatternType.ANY, who, None, *anything)


def _finish(waiting: Mapping[Any, Future[Any]]) -> None:
    with _translated():
        for future in waiting.values():
            future.result(timeout=2 * TIMEOUT_S)


@contextmanager
def _translated() -> Iterator[None]:
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        raise KafkaUserError(f"Kafka refused: {error.args[0].str()}. Does it run with kafka_auth?") from None
    except TimeoutError:
        raise KafkaUserError("Kafka did not answer. `tidemark status` shows whether it runs.") from None
