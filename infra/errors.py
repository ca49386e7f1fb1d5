"""Errors of running Tidemark: each names what was requested, what was found and what to do."""

from __future__ import annotations


def is_temporary(error: Exception) -> bool:
    """Whether another attempt may succeed without anybody's help.

    An error for a person has an `exit_code`, and stays until somebody acts, unless it says otherwise itself. Any other
    (a disk that failed once, a query that died) is worth another attempt.
    """
    return bool(getattr(error, "is_temporary", not hasattr(error, "exit_code")))


class InfraError(Exception):
    """Base of every error a person can cause or fix. The command line prints its text and exits with `exit_code`."""

    exit_code = 1


class SettingsError(InfraError):
    """One or more settings have a value that cannot be used."""

    exit_code = 2


class JavaNotFound(InfraError):
    """No Java, or one that Spark and Kafka cannot run on."""


class JarsError(InfraError):
    """The jars are missing, could not be fetched, or are not the ones that were locked."""


class HomeError(InfraError):
    """The home folder cannot be used as it is."""


class HomeInUse(HomeError):
    """Another supervisor holds this home."""

    exit_code = 75


class PortTaken(InfraError):
    """A port that this home needs is held by another process."""

    def __init__(self, setting: str, port: int, holder: str) -> None:
        super().__init__(
            f"Port {port} ({setting}) is taken by {holder}. "
            f"End that process, or choose another port: TIDEMARK_{setting.upper()}=<port>."
        )
        self.port = port
        self.holder = holder


class ServiceFailed(InfraError):
    """A service did not become ready; the text ends with the last lines of its log."""


class NotRunning(InfraError):
    """A command needs the stack, and nothing runs on this home."""
