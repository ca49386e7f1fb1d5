"""Who may use our own broker: with `kafka_auth`, users with SCRAM passwords, and the standard authorizer.

Our services are one user, whose password is in the home. It is a user of the broker like every other, so somebody who
is signed in has to make it. For the first start that is a user of one process's life, `setup`, which is made of the
configuration; its password is another one at each start, and nobody but the supervisor knows it.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from pathlib import Path

from infra.clients.kafka import OWN_MECHANISM, OWN_USER
from infra.clients.kafka_users import KafkaUserError, KafkaUsers
from infra.home import Home
from infra.secret_files import ensure_secret, write_private

LISTENER = "CLIENT"
CONTROLLER_USER, SETUP_USER = "controller", "setup"
MODULES = "org.apache.kafka.common.security"


class BrokerAccess:
    """The users of the broker of one home. The caller holds the home."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._password = ensure_secret(home.kafka_secret)
        self._setup_password: str | None = None

    def properties(self) -> dict[str, object]:
        """What the broker's configuration says of users, for one start."""
        self._setup_password = None if self._is_set_up() else secrets.token_urlsafe(32)
        own = f'username="{OWN_USER}" password="{self._password}"'
        controller = secrets.token_urlsafe(32)  # the broker and its controller are one process
        values: dict[str, object] = {
            "inter.broker.listener.name": LISTENER,
            "sasl.enabled.mechanisms": OWN_MECHANISM,
            "sasl.mechanism.inter.broker.protocol": OWN_MECHANISM,
            f"listener.name.client.{OWN_MECHANISM.lower()}.sasl.jaas.config": _module("scram.Scram", own),
            "sasl.mechanism.controller.protocol": "PLAIN",
            "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.controller.plain.sasl.jaas.config": _module(
                "plain.Plain",
                f'username="{CONTROLLER_USER}" password="{controller}" user_{CONTROLLER_USER}="{controller}"',
            ),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "allow.everyone.if.no.acl.found": "false",
            "super.users": f"User:{OWN_USER};User:{CONTROLLER_USER}",
        }
        if self._setup_password is not None:
            values |= {
                "listener.name.client.sasl.enabled.mechanisms": f"{OWN_MECHANISM},PLAIN",
                "listener.name.client.plain.sasl.jaas.config": _module(
                    "plain.Plain", f'user_{SETUP_USER}="{self._setup_password}"'
                ),
                "super.users": f"{values['super.users']};User:{SETUP_USER}",
            }
        return values

    def set_up(self, bootstrap: str) -> str | None:
        """Make our user in a broker that has just been started, if it has none. None, or why not yet."""
        if self._setup_password is None:
            return None
        config = {
            "bootstrap.servers": bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": SETUP_USER,
            "sasl.password": self._setup_password,
        }
        try:
            KafkaUsers(config).put(OWN_USER, self._password)
        except KafkaUserError as error:
            return f"the user {OWN_USER!r} is not made yet: {error}"
        write_private(self._record, self._recorded())
        self._setup_password = None
        return None

    @property
    def _record(self) -> Path:
        """Says for which cluster and password the user was made. It goes with the broker's data."""
        return self._home.kafka / "user"

    def _recorded(self) -> str:
        meta = (self._home.kafka / "data" / "meta.properties").read_text(encoding="utf-8")
        found = re.search(r"^cluster\.id=(.+)$", meta, re.MULTILINE)
        return f"{found[1] if found else ''} {hashlib.sha256(self._password.encode()).hexdigest()}\n"

    def _is_set_up(self) -> bool:
        try:
            return self._record.read_text(encoding="utf-8") == self._recorded()
        except (OSError, ValueError):
            return False


def listener_properties(name: str) -> dict[str, object]:
    """What a further listener for clients needs."""
    return {f"listener.name.{name.lower()}.{OWN_MECHANISM.lower()}.sasl.jaas.config": _module("scram.Scram", "")}


def _module(name: str, options: str) -> str:
    return f"{MODULES}.{name}LoginModule required {options};"
