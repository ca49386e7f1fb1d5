"""Every setting in one table, made of the groups of `stack`, `layers` and `serving`."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from typing import Any, Self

from pydantic import model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from infra.errors import SettingsError
from infra.settings.layers import (
    ArchiverSettings,
    BatchSettings,
    CollectorSettings,
    DeclarationsSettings,
    SpeedSettings,
)
from infra.settings.serving import AlertsSettings, ServingSettings
from infra.settings.stack import (
    InstallationSettings,
    KafkaSettings,
    RedisSettings,
    SchemaRegistrySettings,
    SparkSettings,
)
from infra.settings.types import absolute, is_loopback

PREFIX = "TIDEMARK_"
CONFIG_VARIABLE = "TIDEMARK_CONFIG"


class Settings(
    # The last comes first, in the table and in the reference page.
    SparkSettings, DeclarationsSettings, AlertsSettings, ServingSettings, BatchSettings, SpeedSettings,
    ArchiverSettings, CollectorSettings, RedisSettings, SchemaRegistrySettings, KafkaSettings, InstallationSettings,
    BaseSettings,
):  # fmt: skip
    """The settings of one installation. Build it with `load_settings`, which explains what is wrong."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, hide_input_in_errors=False, env_parse_none_str=""
    )

    @model_validator(mode="before")
    @classmethod
    def _secrets_from_files(cls, values: dict[str, Any]) -> dict[str, Any]:
        for name in SECRETS:
            path = values.get(f"{name}_file")
            if isinstance(path, str | Path) and path and not values.get(name):
                try:
                    found = absolute(Path(path))
                except ValueError:  # the setting itself says what is wrong with it
                    continue
                values[name] = _read_secret(name, found)
        return values

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        """Refuse what is right by itself but cannot work together."""
        ports = [name for name in Settings.model_fields if name.endswith("_port") and getattr(self, name)]
        for name, other in itertools.combinations(ports, 2):
            if getattr(self, name) == getattr(self, other):
                raise ValueError(f"{name} and {other} are both {getattr(self, name)}. Give each its own port.")
        if self.kafka_security_protocol != "PLAINTEXT" and not self.kafka_bootstrap:
            raise ValueError(
                f"kafka_security_protocol is {self.kafka_security_protocol!r}, but kafka_bootstrap names no cluster, "
                "and our own broker has a protocol of its own (kafka_auth). Set kafka_bootstrap, or leave it out."
            )
        if self.kafka_security_protocol.startswith("SASL") and not (self.kafka_username and self.kafka_password):
            raise ValueError(
                f"kafka_security_protocol is {self.kafka_security_protocol!r}, which needs kafka_username and "
                "kafka_password (or kafka_password_file)."
            )
        if self.redis_password and not self.redis_url:
            raise ValueError(
                "redis_password is set, but redis_url names no Redis, and our own has its password in the home. "
                "Set redis_url, or leave the password out."
            )
        self._refuse_open_network()
        return self

    def _refuse_open_network(self) -> None:
        """Access without a key beyond this machine must be asked for in so many words."""
        has_syslog = self.collector_syslog_udp_port or self.collector_syslog_tcp_port
        if has_syslog and not is_loopback(self.collector_syslog_host) and not self.access_open_network:
            raise ValueError(
                f"collector_syslog_host is {self.collector_syslog_host!r}, which other machines can reach, and syslog "
                "has no access keys: everybody there could store events. Listen on 127.0.0.1 behind a relay, or set "
                "access_open_network to true if something else guards it."
            )
        if self.access_required or self.access_open_network:
            return
        for server in ("collector", "serving"):
            host = getattr(self, f"{server}_host")
            if getattr(self, f"{server}_enabled") and not is_loopback(host):
                raise ValueError(
                    f"{server}_host is {host!r}, which other machines can reach, and access_required is false: "
                    "everybody there could use it without a key. Leave access_required out, listen on 127.0.0.1, or "
                    "set access_open_network to true if something else guards it."
                )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """First wins: arguments, environment, tidemark.toml."""
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, config_file())


SECRETS = tuple(name for name, field in Settings.model_fields.items() if "SecretStr" in str(field.annotation))


def config_file() -> Path:
    """The configuration file of this process: `tidemark.toml` here, or what TIDEMARK_CONFIG names."""
    return Path(os.environ.get(CONFIG_VARIABLE, "tidemark.toml"))


def _read_secret(name: str, path: Path) -> str:
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise SettingsError(f"{name}_file is {str(path)!r}, which cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{name}_file is {str(path)!r}, which is not UTF-8 text.") from None
    if not secret:
        raise SettingsError(f"{name}_file is {str(path)!r}, which is empty. Write the secret into it.")
    return secret
