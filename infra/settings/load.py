"""Loading settings: what is wrong with them in words, what `tidemark config` shows, and what a child process sees."""

from __future__ import annotations

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import SecretStr, ValidationError
from pydantic_settings.exceptions import SettingsError as UnreadableValue

from infra.errors import SettingsError
from infra.settings.table import CONFIG_VARIABLE, PREFIX, SECRETS, Settings, config_file

COMMAND_PREFIX = "TIDEMARK_CLI_"
"""Options of the command line, not settings."""
MASK = "********"
SECRET_NAME = re.compile(r"(?i)secret|pass|token|key|credential|jaas|\bsas\b")
"""Names of Spark's configuration whose values are masked too."""


class Row(NamedTuple):
    """One line of the settings table as a person reads it; a secret's value is masked."""

    name: str
    value: str
    default: str
    origin: str
    help: str


def load_settings(**overrides: Any) -> Settings:
    """The settings, or a SettingsError that names each wrong one, its value and what would be right."""
    in_file = _read_config_file()
    problems = [*_unknown_names(in_file), *_secrets_in_file(in_file)]
    if problems:
        raise SettingsError("\n".join(problems))
    try:
        return Settings(**overrides)
    except ValidationError as error:
        raise SettingsError("\n".join(_explain(error, in_file))) from None
    except UnreadableValue:  # a table comes from the environment as JSON, and only tables do
        raise SettingsError("\n".join(_unreadable_tables())) from None


def settings_rows(settings: Settings) -> list[Row]:
    """The table that `tidemark config` prints."""
    in_file = _read_config_file()
    return [
        Row(
            name=name,
            value=_shown(getattr(settings, name)),
            default=_shown(field.default),
            origin=_origin(name, in_file),
            help=field.description or "",
        )
        for name, field in Settings.model_fields.items()
    ]


def child_environment(settings: Settings) -> dict[str, str]:
    """The environment for a process that must see just these settings, whatever folder it runs in.

    Secrets travel in it too: unlike arguments, an environment is readable by nobody but the same user.
    """
    values = settings.model_dump(mode="json", exclude_defaults=True, exclude=set(SECRETS)) | {
        "home": str(settings.home)
    }
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in values.items()}
    secrets = {name: value.get_secret_value() for name in SECRETS if (value := getattr(settings, name)) is not None}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    ours = {f"{PREFIX}{name.upper()}": value for name, value in {**texts, **secrets}.items()}
    return inherited | ours | {CONFIG_VARIABLE: os.devnull}


def _shown(value: object) -> str:
    if isinstance(value, dict):
        value = {name: MASK if SECRET_NAME.search(name) else text for name, text in value.items()}
    return MASK if isinstance(value, SecretStr) else "" if value is None else str(value)


def _masked(text: str) -> str:
    """`text` without the name and password of an address in it."""
    return re.sub(r"(?<=password=)[^&'\"]+|(?<=//).*(?=@)", MASK, text)


def _unreadable_tables() -> Iterator[str]:
    for name, field in Settings.model_fields.items():
        variable = f"{PREFIX}{name.upper()}"
        if "dict" in str(field.annotation) and variable in os.environ:
            try:
                json.loads(os.environ[variable])
            except ValueError as error:
                example = '{"spark.sql.ansi.enabled": "true"}'
                yield f"{variable} is not JSON ({error}); it should be an object like {example}. ({name})"


def _origin(name: str, in_file: Mapping[str, Any]) -> str:
    variable = f"{PREFIX}{name.upper()}"
    if variable in os.environ:
        return variable
    return config_file().name if name in in_file else "default"


def _read_config_file() -> dict[str, Any]:
    path = config_file()
    if not path.is_file():
        if CONFIG_VARIABLE in os.environ and os.environ[CONFIG_VARIABLE] != os.devnull:
            raise SettingsError(f"{CONFIG_VARIABLE} is {str(path)!r}, and there is no such file.")
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}.") from None


def _unknown_names(in_file: Mapping[str, Any]) -> Iterator[str]:
    """A misspelt name would otherwise be ignored, and its value with it."""
    known = list(Settings.model_fields)
    for name in in_file:
        if name not in known:
            yield f"{config_file()}: there is no setting {name!r}.{_suggest(name, known)}"
    variables = {f"{PREFIX}{name.upper()}" for name in known} | {CONFIG_VARIABLE}
    endings = [name.removeprefix(PREFIX) for name in variables]
    for variable in os.environ:
        if variable.startswith(PREFIX) and not variable.startswith(COMMAND_PREFIX) and variable not in variables:
            suggestion = _suggest(variable.removeprefix(PREFIX), endings, PREFIX)
            yield f"Environment: there is no setting {variable}.{suggestion}"


def _suggest(name: str, known: list[str], prefix: str = "") -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {prefix}{close[0]}?" if close else " `tidemark config` lists them all."


def _secrets_in_file(in_file: Mapping[str, Any]) -> Iterator[str]:
    for name in SECRETS:
        if name in in_file:
            yield (
                f"{config_file()}: {name} is a secret and does not belong in this file. "
                f"Set {PREFIX}{name.upper()}, or name a file with {name}_file."
            )


def _explain(error: ValidationError, in_file: Mapping[str, Any]) -> Iterator[str]:
    for problem in error.errors():
        right = problem["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
        if not problem["loc"]:  # values that do not fit together; the input would be all of them, secrets included
            yield right
            continue
        name = str(problem["loc"][0])
        field = Settings.model_fields.get(name)
        origin = _origin(name, in_file)
        where = origin if origin.startswith(PREFIX) else f"{origin}: {name}"
        given = MASK if name in SECRETS or SECRET_NAME.search(str(problem["loc"])) else _masked(repr(problem["input"]))
        yield f"{where} is {given}; it should be {right}. ({name}: {field.description if field else 'unknown'})"
