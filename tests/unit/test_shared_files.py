"""Files that are written beside `Store`: all of them, each with its reason in decision 29."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
DECISION = (ROOT / "docs/decisions/0029-files-beside-store-and-lease.md").read_text(encoding="utf-8")
ROOMS = ("tidemark", "views", "master_dataset", "hand_off", "batch_layer", "speed_layer", "serving_layer")
WRITES = {"replace_file", "write_json", "write_private", "rename", "link", "symlink", "flock", "lockf"}
"""Calls by which one process changes what another reads. `replace` is a method of texts, too; see `_writes`."""
BESIDE_STORE = {
    "batch_layer/delta_commits.py": "the Delta log of a batch table",
    "batch_layer/failures.py": "failures of the scheduler",
    "batch_layer/index/builder.py": "the index of a run",
    "batch_layer/scheduler.py": "status",
    "hand_off/old_publish_log.py": "`publish.log` of 0.1.0",
    "master_dataset/dead_letters/sent.py": "`dead_letters.sent`",
    "master_dataset/importer/journal.py": "progress of imports",
    "master_dataset/table/checks/void_commits.py": "an entry that stands for a removed commit",
    "master_dataset/table/ledger.py": "the open end of the ledger",
    "tidemark/backup/restore.py": "the mark of an unfinished restore",
}
"""Modules, and what the decision calls their files."""


def test_every_module_that_replaces_a_file_beside_the_store_has_its_reason_in_the_decision() -> None:
    found = {
        str(path.relative_to(ROOT))
        for room in ROOMS
        for path in (ROOT / room).rglob("*.py")
        if any(map(_writes, ast.walk(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert found == BESIDE_STORE.keys()
    for module, words in BESIDE_STORE.items():
        assert words in DECISION, module


def _writes(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    if isinstance(called, ast.Name):
        return called.id in WRITES
    if not isinstance(called, ast.Attribute):
        return False
    in_os = isinstance(called.value, ast.Name) and called.value.id == "os"
    return called.attr in WRITES or (in_os and called.attr == "replace")


def test_every_lock_beside_a_lease_is_in_the_decision() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = [each for each in contracts if "infra.locks" in each.get("forbidden_modules", ())]
    assert set(contract["source_modules"]) == {*ROOMS, "torture"}
    for ignored in contract["ignore_imports"]:
        module, _, imported = ignored.partition(" -> ")
        assert imported == "infra.locks"
        assert f"`{module.replace('.', '/')}.py`" in DECISION
