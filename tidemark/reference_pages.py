"""Write the generated pages of docs/: the settings from their table, the commands from the command line itself.

`make docs` runs this. A test compares the pages with the code.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from infra.settings import PREFIX, SECRETS, Settings
from tidemark import cli

DOCS = Path(__file__).parents[1] / "docs"
NOTE = "<!-- Written by `make docs`. Change the code, not this page. -->"


def pages() -> dict[str, str]:
    """File name -> content."""
    return {"settings.md": settings_page(), "commands.md": commands_page()}


def settings_page() -> str:
    """One table row a setting, in the order of the code."""
    rows = [
        "| setting | variable | default | what it is for |",
        "|---|---|---|---|",
        *(_setting_row(name, field) for name, field in Settings.model_fields.items()),
    ]
    return _page(
        "Settings",
        "A value comes from the environment, then from `tidemark.toml` in the folder where the command runs (or the "
        "file that `TIDEMARK_CONFIG` names), then from the default. `tidemark config` shows what is in force and where "
        "it comes from.",
        *rows,
        "",
        f"Secrets ({', '.join(f'`{name}`' for name in SECRETS)}) come from the environment or from the file that "
        "`<name>_file` names, never from `tidemark.toml`, and are masked wherever they would be printed.",
    )


def commands_page() -> str:
    """One section a command, with its arguments and options."""
    cli._add_groups(list(cli.GROUPS))  # each with its commands, not only its help
    root: Any = typer.main.get_command(cli.app)
    sections = [line for path, command in _commands(root, "tidemark") for line in _command_section(path, command)]
    return _page(
        "Commands",
        "Results go to stdout, logs and progress to stderr. Exit codes: 0 ok, 1 failed, 2 wrong usage or settings, "
        "75 another process holds the home.",
        *sections,
    )


def _page(title: str, *lines: str) -> str:
    return "\n".join([f"# {title}", "", NOTE, "", lines[0], "", *lines[1:]]).rstrip() + "\n"


def _setting_row(name: str, field: Any) -> str:
    return f"| `{name}` | `{PREFIX}{name.upper()}` | {_default(field.default)} | {_cell(field.description or '')} |"


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The root first, then every command below it, in the order of `--help`."""
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from _commands(below, f"{path} {name}")


def _command_section(path: str, command: Any) -> Iterator[str]:
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    options = [parameter for parameter in command.params if parameter.param_type_name == "option"]
    yield f"## `{' '.join([path, *(_argument(each) for each in arguments)])}`"
    yield ""
    yield re.sub(r"\s+", " ", command.help or "").strip()
    yield ""
    if arguments or options:
        yield "| | default | variable | what it does |"
        yield "|---|---|---|---|"
        for parameter in (*arguments, *options):
            yield _parameter_row(parameter)
        yield ""


def _argument(parameter: Any) -> str:
    name = parameter.name.upper() + ("..." if parameter.nargs == -1 else "")
    return name if parameter.required else f"[{name}]"


def _parameter_row(parameter: Any) -> str:
    is_argument = parameter.param_type_name == "argument"
    names = _argument(parameter) if is_argument else ", ".join([*parameter.opts, *parameter.secondary_opts])
    shown = parameter.show_default if isinstance(parameter.show_default, str) else _default(parameter.default)
    variable = f"`{parameter.envvar}`" if isinstance(parameter.envvar, str) else ""
    return f"| `{names}` | {shown} | {variable} | {_cell(parameter.help or '')} |"


def _default(value: Any) -> str:
    if value is None or value in ("", ()) or callable(value):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else getattr(value, 'value', value)}`"


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()


def main() -> int:
    """Write the pages and print their names."""
    for name, content in pages().items():
        (DOCS / name).write_text(content, encoding="utf-8")
        sys.stdout.write(f"wrote docs/{name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
