"""Refusals of the registry, with the error codes that clients of Confluent's registry know."""

from __future__ import annotations

from infra.rest.problems import Problem
from master_dataset.errors import MasterDatasetError

MAX_SHOWN = 200


class RegistryError(MasterDatasetError):
    """A request that is refused. The first three digits of `code` are the HTTP status."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code

    @property
    def status(self) -> int:
        """The HTTP status."""
        return int(str(self.code)[:3])


class UnreadableTopic(MasterDatasetError):
    """The topic `_schemas` is not there, or not what a registry can keep schemas in."""


def subject_not_found(subject: str) -> RegistryError:
    """40401."""
    return RegistryError(40401, f"Subject {shown(subject)} not found.")


def version_not_found(number: int) -> RegistryError:
    """40402."""
    return RegistryError(40402, f"Version {number} not found.")


def schema_not_found(what: str = "") -> RegistryError:
    """40403."""
    return RegistryError(40403, f"Schema {what} not found." if what else "Schema not found.")


def invalid_schema(text: str) -> RegistryError:
    """42201."""
    return RegistryError(42201, text)


def invalid_version(given: object) -> RegistryError:
    """42202."""
    return RegistryError(
        42202,
        f"The specified version {shown(given)} is not a valid version id. Allowed values are between [1, 2^31-1] and "
        'the string "latest".',
    )


def not_permitted(text: str) -> RegistryError:
    """42205."""
    return RegistryError(42205, text)


def busy(text: str) -> Problem:
    """503 with a time to try again."""
    return Problem(503, "registry-not-ready", text, retry_after_s=1)


def outcome_unknown(text: str) -> Problem:
    """503 with a time to try again, where a change may have been made or not."""
    return Problem(
        503,
        "outcome-unknown",
        f"{text} Whether anything was changed is not known. Send the request again: what was registered keeps its id.",
        retry_after_s=1,
    )


def shown(given: object) -> str:
    """A value for a message, cut to a size that people read."""
    text = repr(given)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."
