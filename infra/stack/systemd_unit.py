"""A systemd unit that runs a home as a service: made of the settings, the user and the Python that call for it."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from infra.errors import InfraError
from infra.java.find import find_java
from infra.settings import PREFIX, SECRETS, Settings, settings_rows
from infra.settings.load import MASK
from infra.settings.table import CONFIG_VARIABLE, config_file
from infra.stack.addresses import wanted_ports

MAX_SERVICES = 9
FIRST_FREE_PORT = 1024
"""Below it, a process needs a capability to listen."""
PATHS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
HARDENING = """\
NoNewPrivileges=yes
PrivateDevices=yes
ProtectSystem=full
ProtectKernelTunables=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectClock=yes
RestrictSUIDSGID=yes
RestrictRealtime=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
LockPersonality=yes
SystemCallArchitectures=native
UMask=0077"""
"""Not MemoryDenyWriteExecute: Java compiles at run time. Not ProtectHome: a home may be in the user's own folder."""


def unit_text(settings: Settings) -> str:
    """The unit. It names the folder where the command was called: relative paths in tidemark.toml mean that one."""
    program = " ".join(map(_argument, (sys.executable, "-P", "-m", "tidemark", "up")))
    stop_s = settings.stop_timeout_s * MAX_SERVICES + 15
    low_ports = any(0 < port < FIRST_FREE_PORT for port in wanted_ports(settings).values())
    capabilities = "CAP_NET_BIND_SERVICE" if low_ports else ""
    return f"""\
# Made by `tidemark systemd-unit`. Make it again when settings in the environment, Python or Java move.
[Unit]
Description=Tidemark in {_escaped(str(settings.home))}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
# Ready when every service is; the watchdog restarts a supervisor that hangs, which restarts services that do.
Type=notify
NotifyAccess=main
WatchdogSec=300
User={pwd.getpwuid(os.getuid()).pw_name}
WorkingDirectory={_escaped(str(Path.cwd()))}
{"".join(f"Environment={_assignment(name, value)}{chr(10)}" for name, value in _environment(settings))}\
ExecStart={program}
# `tidemark down` ends it for good; a wrong setting (exit code 2) stays wrong.
Restart=on-failure
RestartSec=10
RestartPreventExitStatus=2
TimeoutStartSec=300
TimeoutStopSec={stop_s:.0f}
# Only the supervisor gets SIGTERM: it stops the services in order.
KillMode=mixed
# One service that runs out of memory is restarted by the supervisor, not by stopping all others.
OOMPolicy=continue
LimitNOFILE=65536
{HARDENING}
PrivateTmp={"no" if any(_is_temporary(path) for path in _written(settings)) else "yes"}
CapabilityBoundingSet={capabilities}
AmbientCapabilities={capabilities}
ReadWritePaths={" ".join(_listed(path) for path in _written(settings))}

[Install]
WantedBy=multi-user.target
"""


def unit_warnings(settings: Settings) -> Iterator[str]:
    """What the unit does not hold although this shell has it."""
    for name in SECRETS:
        if f"{PREFIX}{name.upper()}" in os.environ:
            yield (
                f"{PREFIX}{name.upper()} is a secret and is not written into the unit. Put it into a file that only "
                f"{pwd.getpwuid(os.getuid()).pw_name!r} can read, and name that with {name}_file."
            )
    for row in settings_rows(settings):
        if row.origin.startswith(PREFIX) and row.name not in SECRETS and MASK in row.value:
            yield f"{row.origin} holds a secret and is not written into the unit. Put it into tidemark.toml."


def _environment(settings: Settings) -> Iterator[tuple[str, str]]:
    """What the process would otherwise not see: systemd starts it with an empty environment."""
    yield "PATH", os.environ.get("PATH") or PATHS
    if config_file().is_file():
        yield CONFIG_VARIABLE, str(config_file().absolute())
    yield f"{PREFIX}HOME", str(settings.home)
    rows = {row.name: row for row in settings_rows(settings)}
    if "java_home" not in rows or rows["java_home"].origin == "default":
        with suppress(InfraError):  # the service itself says then what is missing
            yield f"{PREFIX}JAVA_HOME", str(find_java(settings.java_home).home)
    for name, row in rows.items():
        if row.origin.startswith(PREFIX) and name != "home" and name not in SECRETS and MASK not in row.value:
            yield row.origin, os.environ[row.origin]


def _written(settings: Settings) -> list[Path]:
    folders = [settings.home, settings.master_dir, settings.batch_dir, settings.jars_dir, settings.ports_file.parent]
    return list(dict.fromkeys(folder for folder in folders if folder is not None))


def _assignment(name: str, value: str) -> str:
    text = f"{name}={value}".replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("%", "%%")
    return f'"{text}"'


def _argument(text: str) -> str:
    """For a command line: `$` and `%` would be replaced, a space would end it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$").replace("%", "%%")
    return f'"{escaped}"' if escaped != text or " " in text else text


def _listed(path: Path) -> str:
    """For a list of paths; `-`: it need not exist yet."""
    escaped = f"-{path}".replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped}"' if " " in escaped or '"' in escaped else escaped


def _is_temporary(path: Path) -> bool:
    """Whether a private /tmp would hide it."""
    return any(path.is_relative_to(folder) for folder in ("/tmp", "/var/tmp"))  # noqa: S108  compared, not written


def _escaped(text: str) -> str:
    return text.replace("%", "%%").replace("\n", " ")
