"""Compile the text of a Protobuf schema: protoc in a process and a folder of its own, for the text may be anybody's."""

from __future__ import annotations

import importlib.resources
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorSet

from views.schemas.bounded_process import bounded
from views.schemas.model import InvalidSchema

ROOT = "schema.proto"
DEADLINE_S = 20.0
MAX_CPU_S = 22
"""For a process whose parent does not end it any more."""
LEFT_BEHIND_S = 3600.0
"""The age of a folder that nobody uses: who made it was killed."""
FOLDER = "tidemark-protoc-"
MAX_MESSAGE = 1000

_PATH = re.compile(r"[A-Za-z0-9_.\-]+(/[A-Za-z0-9_.\-]+)*")
_ERROR = re.compile(r"^(?P<file>[^:\n]+\.proto):(?:(?P<line>\d+):(?P<column>\d+):)? ?(?P<text>.*)$")
_WELL_KNOWN = Path(str(importlib.resources.files("grpc_tools"))) / "_proto"
_COMMON = Path(str(importlib.resources.files("google.type") / "date.proto")).parent
_CONFLUENT = Path(__file__).parent / "bundled"
BUNDLED = ("-I", str(_WELL_KNOWN), "-I", f"google/type={_COMMON}", "-I", str(_CONFLUENT))
"""Where protoc finds what serializers register no references to: Google's well-known types and its common ones, such as
dates and money, and what Confluent's serializers bring, `confluent/meta.proto` and a decimal."""


def compile_text(text: str, imports: Mapping[str, str]) -> FileDescriptorSet:
    """The files that a schema consists of: what it imports first, and the schema, whose name is ROOT, last.

    `imports` are texts by the paths that they are imported by. What is bundled need not be among them; what is, but for
    Google's well-known types, is taken from there.
    """
    remove_leftovers()
    with tempfile.TemporaryDirectory(prefix=FOLDER) as folder:
        for path, imported in imports.items():
            if not is_well_known(path):
                _write(Path(folder), path, imported)
        _write(Path(folder), ROOT, text)
        command = [
            *(sys.executable, "-I", "-m", "grpc_tools.protoc"),
            *("-I", ".", *BUNDLED),
            *("--include_imports", "--descriptor_set_out=compiled", ROOT),
        ]
        try:
            limited = bounded(command, MAX_CPU_S)
            done = subprocess.run(limited, cwd=folder, capture_output=True, timeout=DEADLINE_S, check=False)
        except subprocess.TimeoutExpired:
            raise InvalidSchema(
                f"The PROTOBUF schema was not compiled within {DEADLINE_S:g} s. Make it smaller."
            ) from None
        if done.returncode != 0:
            raise InvalidSchema(_explained(done.stderr.decode(errors="replace")))
        return FileDescriptorSet.FromString((Path(folder) / "compiled").read_bytes())


@cache  # once in a process
def remove_leftovers() -> None:
    """Remove the folders of processes that were killed while protoc ran."""
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER}*"):
        try:
            age_s = time.time() - folder.stat().st_mtime
        except OSError:
            continue
        if age_s > LEFT_BEHIND_S:
            shutil.rmtree(folder, ignore_errors=True)


def is_well_known(path: str) -> bool:
    """Whether a path is that of a file that comes with protoc."""
    return _is_path(path) and path.startswith("google/protobuf/") and (_WELL_KNOWN / path).is_file()


def check_path(path: str) -> None:
    """Refuse what cannot be the path of an import."""
    if not _is_path(path) or path == ROOT:
        raise InvalidSchema(
            f"A reference of a PROTOBUF schema has the name '{path}'. Its name is the path by which it is imported, "
            f"such as 'shop/order.proto', and not '{ROOT}'."
        )


def _is_path(path: str) -> bool:
    return len(path) <= 255 and bool(_PATH.fullmatch(path)) and not {".", ".."} & set(path.split("/"))


def _write(folder: Path, path: str, text: str) -> None:
    target = folder / path
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    except OSError as error:  # one reference is named like the folder of another
        raise InvalidSchema(f"The reference '{path}' has no name that a file could have: {error.strerror}.") from None


def _explained(output: str) -> str:
    """What protoc found, as our message: its lines without those that only follow from others."""
    lines = [found for line in output.splitlines() if (found := _ERROR.match(line))]
    missing = [found for found in lines if "File not found" in found["text"]]
    problems = []
    for found in missing or lines:
        if found["text"].startswith(("warning:", "Import ")):
            continue
        where = "PROTOBUF schema" if found["file"] == ROOT else f"PROTOBUF schema '{found['file']}'"
        position = f", line {found['line']}, column {found['column']}" if found["line"] else ""
        problems.append(f"{where}{position}: {found['text'].rstrip('.')}.")
        if missing:
            problems[-1] += " Register the imported schema, and add a reference whose name is the path of the import."
    return (" ".join(problems) or f"The PROTOBUF schema was not compiled: {output.strip()}")[:MAX_MESSAGE]
