"""Documents in step with the code: generated pages, named commands and targets; nothing of one machine in a file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from serving_layer.query.provenance import exactness
from tests.conftest import repository_files
from tidemark import cli, reference_pages
from views.declarations import load_declarations

pytestmark = pytest.mark.process  # git says which files there are
ROOT = Path(__file__).parents[2]
REGISTRIES = [".".join(words) for words in (("pypi", "org"), ("pythonhosted", "org"), ("repo1", "maven", "org"),
                                            ("maven", "apache", "org"), ("registry", "npmjs", "org"))]  # fmt: skip
"""Put together here, so that this file is not the one that names them."""


def texts() -> dict[str, str]:
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8", errors="replace")
        for path in repository_files(ROOT)
    }


def documents() -> dict[str, str]:
    return {name: text for name, text in texts().items() if name.endswith(".md")}


def code_in(text: str) -> str:
    """What a document shows as code: fenced blocks and `words`."""
    fenced = re.findall(r"^```.*?\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    return "\n".join([*fenced, *inline])


@pytest.mark.parametrize("name", ["settings.md", "commands.md"])
def test_generated_page_is_what_the_code_would_write(name: str) -> None:
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == reference_pages.pages()[name], "run `make docs`"


def test_every_make_target_named_in_a_document_exists() -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert {"setup", "demo", "test"} <= targets
    for name, text in documents().items():
        named = re.findall(r"(?:^|[\s;&(])make ([a-z][a-z-]*)", code_in(text))
        assert not set(named) - targets, name


def test_every_command_and_option_named_in_a_document_exists() -> None:
    cli._add_groups(list(cli.GROUPS))
    root: Any = typer.main.get_command(cli.app)
    for name, text in documents().items():
        for line in re.findall(r"(?:^|[\s;&(])tidemark ([a-z-][^\n`|;&#)]*)", code_in(text), re.MULTILINE):
            assert_is_command(root, line.split(), f"{name}: tidemark {line}")


def assert_is_command(root: Any, words: list[str], where: str) -> None:
    command = root
    known = {"--help", "-h"}
    for word in words:
        known |= {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        if word.startswith("-"):
            assert word.partition("=")[0] in known, f"{where}: no option {word}"
        elif hasattr(command, "commands"):
            assert word in command.commands, f"{where}: no command {word}"
            command = command.commands[word]


def test_no_two_pages_create_the_same_key() -> None:
    """Whoever follows both would be refused by the second."""
    created = [
        (name, key)
        for name, text in documents().items()
        for key in set(re.findall(r"tidemark keys add ([a-z]\S*)", code_in(text)))
    ]
    assert len(created) > 3
    assert len({key for _, key in created}) == len(created), sorted(created, key=lambda each: each[1])


def test_every_variable_named_in_a_document_exists() -> None:
    known = set(re.findall(r"TIDEMARK_[A-Z0-9_]+", (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")))
    known |= set(re.findall(r"TIDEMARK_[A-Z0-9_]+", (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")))
    for name, text in {**documents(), "docker-compose.yml": texts()["docker-compose.yml"]}.items():
        named = {found for found in re.findall(r"TIDEMARK_[A-Z0-9_]+", text) if not found.endswith("_")}
        assert not named - known, name


def test_every_link_inside_the_repository_leads_somewhere() -> None:
    for name, text in documents().items():
        for target in re.findall(r"\]\(([^)#\s]+)", text):
            if not re.match(r"[a-z]+:", target):
                assert ((ROOT / name).parent / target).exists(), f"{name}: {target}"


def test_every_picture_in_a_document_exists() -> None:
    for name, text in documents().items():
        for target in re.findall(r"""<img\s[^>]*?src=["']([^"']+)""", text):
            if not re.match(r"[a-z]+:", target):
                assert ((ROOT / name).parent / target).is_file(), f"{name}: {target}"


ROOMS = (
    *("tidemark", "views", "master_dataset", "hand_off", "batch_layer", "speed_layer", "serving_layer", "infra"),
    *("torture", "tests", "benchmarks", "examples", "docs"),
)


def test_every_file_named_in_a_document_exists() -> None:
    for name, text in documents().items():
        for path in re.findall(rf"(?<![\w./-])(?:{'|'.join(ROOMS)})/[\w./-]*\w", code_in(text)):
            assert (ROOT / path).exists() or (ROOT / f"{path}.py").exists(), f"{name}: {path}"


def test_view_in_the_readme_can_be_copied() -> None:
    (code,) = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    declared: dict[str, Any] = {}
    exec(code, declared)  # noqa: S102  # our own page
    assert declared["visits"].hash.startswith("1677e5273d6320ce"), "the answer in the README is of this version"
    for name in declared["visits"].answers:
        shown = json.dumps({name: exactness(declared["visits"], name)}, separators=(",", ":")).strip("{}")
        assert shown in (ROOT / "README.md").read_text(encoding="utf-8")


def test_example_project_declares_what_its_readme_says() -> None:
    shop = load_declarations(ROOT / "examples" / "shop" / "views", with_catalog=False)
    readme = (ROOT / "examples" / "shop" / "README.md").read_text(encoding="utf-8")
    assert (sorted(shop.sources), sorted(shop.views), sorted(shop.alerts)) == (
        ["orders"], ["customers", "payments", "sales"], ["many_declined"],
    )  # fmt: skip
    assert all(f"`{name}`" in readme for name in [*shop.sources, *shop.views, *shop.alerts])


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 120


def test_readme_names_the_two_commands_that_do_everything() -> None:
    shown = code_in((ROOT / "README.md").read_text(encoding="utf-8"))
    assert "make demo" in shown
    assert "make test" in shown


def test_bare_make_prints_every_target_with_its_help() -> None:
    printed = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for target in targets:
        assert re.search(rf"make {target}\s+\w", printed), target


def test_no_file_names_a_package_registry() -> None:
    for name, text in texts().items():
        found = [host for host in REGISTRIES if host in text]
        found += re.findall(r"^--(?:extra-)?index-url|^--find-links|^-i ", text, re.MULTILINE)
        assert not found, name


def test_no_file_names_a_path_of_this_machine() -> None:
    here = {f"{ROOT}/", f"{Path.home()}/", f"{Path(sys.prefix)}/"} - {"//", "/"}
    for name, text in texts().items():
        assert not [path for path in here if re.search(rf"(?<![\w.]){re.escape(path)}", text)], name


def test_every_test_file_named_in_a_document_exists() -> None:
    """Tables name the tests that prove a promise."""
    for name, text in documents().items():
        missing = [path for path in re.findall(r"`(tests/[\w/]+\.py)`", text) if not (ROOT / path).is_file()]
        assert not missing, name
