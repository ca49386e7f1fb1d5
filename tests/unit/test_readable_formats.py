"""The formats of files: each module says which it reads, and refuses others by their number."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

import orjson
import pytest

from batch_layer.consistency import quarantine
from hand_off.batch_folder import BatchFolder
from hand_off.checksums import seal
from hand_off.errors import BatchError
from hand_off.foundations import FoundationDamaged, read_foundation
from infra.formats import reads
from master_dataset.table.segments import Segment, SegmentDamaged, read_segment, store_of

ROOT = Path(__file__).parents[2]
ROOMS = ("batch_layer", "hand_off", "master_dataset")
OF_ONE_FORMAT = {"hand_off/old_publish_log.py": "the format of 0.1.0, which nothing writes any more"}
MODULES = sorted(
    str(path.relative_to(ROOT))
    for room in ROOMS
    for path in (ROOT / room).rglob("*.py")
    if any(
        isinstance(node, ast.Assign) and [ast.unparse(each) for each in node.targets] == ["FORMAT"]
        for node in ast.parse(path.read_text(encoding="utf-8")).body
    )
)


@pytest.fixture
def folder(tmp_path: Path) -> BatchFolder:
    return BatchFolder(tmp_path / "web")


@pytest.mark.parametrize("path", [path for path in MODULES if path not in OF_ONE_FORMAT])
def test_module_reads_the_format_that_it_writes_and_names_all_that_it_reads(path: str) -> None:
    module: Any = import_module(path.removesuffix(".py").replace("/", "."))
    assert module.FORMAT in module.READABLE
    assert max(module.READABLE) == module.FORMAT


@pytest.mark.parametrize(
    ("readable", "said"), [({2}, "reads 2"), ({2, 1}, "reads 1 and 2"), ({1, 3, 2}, "reads 1, 2 and 3")]
)
def test_error_names_the_formats_that_are_known(readable: set[int], said: str) -> None:
    assert reads(readable) == f"this version of Tidemark {said}"


def test_foundation_of_another_format_is_refused_by_its_number(folder: BatchFolder) -> None:
    (folder.root / "foundations").mkdir(parents=True)
    (folder.root / "foundations" / "00000004.json").write_text(seal({"format": 7}))
    with pytest.raises(FoundationDamaged, match="it has format 7; this version of Tidemark reads 1"):
        read_foundation(folder, "00000004")


def test_quarantines_of_another_format_are_refused_by_its_number(folder: BatchFolder) -> None:
    folder.root.mkdir(parents=True)
    folder.consistency.write_text(seal({"format": 7}))
    with pytest.raises(BatchError, match=r"has format 7 \(this version of Tidemark reads 1\)"):
        quarantine.read(folder)


def test_segment_of_another_format_is_refused_by_its_number(tmp_path: Path) -> None:
    segment = Segment(0, 4)
    store_of(tmp_path / "web").put_if_absent(segment.name, orjson.dumps({"tidemark_segment": 7}) + b"\n")
    with pytest.raises(SegmentDamaged, match="it has format 7; this version of Tidemark reads 1"):
        read_segment(tmp_path / "web", segment)
