"""The manifest of a run: every file that belongs to it, and what was counted. Written once, before it is published."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hand_off.batch_folder import BatchFolder
from hand_off.checksums import seal, unseal
from hand_off.errors import BatchError
from infra.formats import reads
from infra.store import ObjectMissing
from infra.version import VERSION
from master_dataset.cut import Cut, cut_from_json, cut_to_json

FORMAT = 1
READABLE = frozenset({1})
MANIFEST = re.compile(r"runs/(\d{8,})\.json")
Kind = Literal["full", "continued"]


@dataclass(frozen=True)
class DataFile:
    """A Parquet file of a batch view. `path` is relative to the view's table, `action` the JSON of Delta's AddFile."""

    day: str
    path: str
    rows: int
    bytes: int
    action: str = ""


@dataclass(frozen=True)
class Phase:
    """A part of a run: how long it took, and how many Spark jobs it needed."""

    name: str
    seconds: float
    jobs: int


@dataclass(frozen=True)
class ViewData:
    """One view in a run. `index` names its files relative to the folder of indexes."""

    name: str
    hash: str
    kind: Kind
    files: tuple[DataFile, ...]
    rows: int
    totals: dict[str, str]
    index: tuple[str, ...]
    seconds: float
    compared: dict[str, Any] | None = None
    """What the comparison with the speed view found (`consistency.to_json`)."""
    max_key_bytes: int = 0
    """The longest text in its keys (views/short_texts.py). 0: an older Tidemark wrote it, without a limit."""
    since: dict[str, Any] | None = None
    """The cut and the day from which on it counts, because older records were removed before it was declared."""


@dataclass(frozen=True)
class Manifest:
    """One run: all events below `cut`, each counted once. `ids` are relative to the folder of ids.

    It is complete by itself: where a run continued another (`base_run`), the files it took over are named here again.
    """

    run: int
    source: str
    cut: Cut
    base_run: int | None
    started: float
    finished: float
    events: int
    duplicates: int
    invalid: int
    views: tuple[ViewData, ...]
    ids: tuple[str, ...]
    master: str = ""
    """Of which master dataset it was made: another text, and what was counted may have changed since."""
    app: str = VERSION
    unpin: bool = False
    """Whether its publication ends a rollback. With it the entry of the publish log can be made from the manifest."""
    timeline: tuple[Phase, ...] = ()
    """What took how long, up to the manifest itself. Runs of an older Tidemark have none."""
    is_prepared: bool = False
    """Whether a switch prepared it: the run after it goes on from it, and it is itself never published."""

    def view(self, name: str) -> ViewData:
        """One view's data, or a BatchError that names those there are."""
        for view in self.views:
            if view.name == name:
                return view
        names = ", ".join(sorted(view.name for view in self.views)) or "none"
        raise BatchError(f"Run {self.run} of source {self.source!r} has no view {name!r}. It has: {names}.")

    @property
    def kind(self) -> Kind:
        """Full where every view is."""
        return "full" if all(view.kind == "full" for view in self.views) else "continued"

    @property
    def rows(self) -> int:
        """Of all its views."""
        return sum(view.rows for view in self.views)

    def to_json(self) -> dict[str, Any]:
        """The file's content, and what `tidemark batch show` prints."""
        value = {"format": FORMAT, **dataclasses.asdict(self), "cut": cut_to_json(self.cut)}
        if not self.is_prepared:  # an older Tidemark can read all others
            del value["is_prepared"]
        return value


def from_json(value: dict[str, Any]) -> Manifest:
    """The inverse of `Manifest.to_json`."""
    fields = {name: each for name, each in value.items() if name != "format"}
    return Manifest(
        **{
            **fields,
            "cut": cut_from_json(value["cut"]),
            "views": tuple(_view_from_json(view) for view in value["views"]),
            "ids": tuple(value["ids"]),
            "timeline": tuple(Phase(**phase) for phase in value.get("timeline", ())),
        }
    )


def _view_from_json(value: dict[str, Any]) -> ViewData:
    return ViewData(
        **{**value, "files": tuple(DataFile(**file) for file in value["files"]), "index": tuple(value["index"])}
    )


def write_manifest(folder: BatchFolder, manifest: Manifest) -> None:
    """Write it, durably; a run has one manifest for ever. What it names is on the disk before: see to that first."""
    if not folder.store.put_if_absent(manifest_name(manifest.run), seal(manifest.to_json(), indent=1).encode()):
        raise BatchError(
            f"Run {manifest.run} of source {folder.source!r} has a manifest already. A number is given out once: "
            "begin a new run with `tidemark batch run`."
        )


def manifest_name(run: int) -> str:
    """The object that holds the manifest of a run: 7 -> `runs/00000007.json`."""
    return f"runs/{run:08}.json"


def runs_with_manifests(folder: BatchFolder) -> list[int]:
    """The runs that have a manifest, published or not, readable or not."""
    found = (MANIFEST.fullmatch(name) for name in folder.store.list("runs/"))
    return sorted(int(name[1]) for name in found if name)


def read_manifest(folder: BatchFolder, run: int) -> Manifest:
    """The manifest of a run, or a BatchError that says what is missing or damaged."""
    path = folder.manifest(run)
    try:
        text = folder.store.get(manifest_name(run))
    except ObjectMissing:
        raise BatchError(
            f"Run {run} of source {folder.source!r} has no manifest ({str(path)!r}): it was pruned, or never finished. "
            f"`tidemark batch run --full --source {folder.source}` recomputes everything."
        ) from None
    value = unseal(text)
    if value is None:
        raise BatchError(
            f"The manifest of run {run} of source {folder.source!r} ({str(path)!r}) is damaged: its checksum is wrong. "
            f"`tidemark batch run --full --source {folder.source}` recomputes everything."
        )
    if value.get("format") not in READABLE:
        raise BatchError(
            f"The manifest of run {run} of source {folder.source!r} has format {value.get('format')}; "
            f"{reads(READABLE)}. `tidemark batch run --full --source {folder.source}` recomputes everything."
        )
    return from_json(value)


# ---- the files that a manifest names -------------------------------------------


def paths_of(folder: BatchFolder, manifest: Manifest) -> Iterator[Path]:
    """Everything that the run cannot do without; some may be folders."""
    for view in manifest.views:
        table = folder.table(view.name, view.hash)
        yield from (table / file.path for file in view.files)
        yield from (folder.indexes / name for name in view.index)
    yield from (folder.ids / name for name in manifest.ids)


def missing_of(folder: BatchFolder, manifest: Manifest) -> Iterator[str]:
    """What is wrong with the files of a run: gone, or of another size than written. Nothing is read."""
    for path in paths_of(folder, manifest):
        if not path.exists():
            yield f"{path} is gone"
    for view in manifest.views:
        for file in view.files:
            path = folder.table(view.name, view.hash) / file.path
            if path.is_file() and path.stat().st_size != file.bytes:
                yield f"{path} has {path.stat().st_size} bytes instead of {file.bytes}"
