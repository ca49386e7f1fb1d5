"""The definitions of views, stored by hash: what a run of the publish log computed, for ever.

definitions/<hash>             what the view means: the text whose hash it is
definitions/<hash>.declared    how it was declared: from it the view can be made again
"""

from __future__ import annotations

import json
import re
from functools import partial
from typing import TYPE_CHECKING

from hand_off.batch_folder import BatchFolder
from hand_off.errors import BatchError
from infra.store import BadName, ObjectMissing, StoreError
from master_dataset.errors import MasterDatasetError
from views.errors import DeclarationError

if TYPE_CHECKING:
    from pathlib import Path

    from views.source import Source
    from views.view import View

WITH_READING = b'"source"'
HASH = re.compile(r"[0-9a-zA-Z]{8,128}")


def keep(folder: BatchFolder, view: View) -> None:
    """Keep the definition of a view; it is on the disk when this returns."""
    from views import serialization  # which reads declarations: readers of batch views need no part of that

    store(folder, view.hash, view.definition())
    name, declared = _declared(view.hash), serialization.to_text(view).encode()
    if not folder.store.put_if_absent(name, declared):
        stored = folder.store.read(name)
        if WITH_READING not in stored.data and _is_json(stored.data):  # of an older version
            folder.store.replace_if(name, stored.version, declared)


def version_of(folder: BatchFolder, definition_hash: str) -> int | None:
    """The version of the source's reading by which a kept view reads records; None where nobody knows any more."""
    try:
        definition = json.loads(load(folder, definition_hash))
        return int(definition.get("reading", {}).get("version", 1))
    except (BatchError, ValueError, TypeError, AttributeError):
        return None


def restore(folder: BatchFolder, definition_hash: str, source: Source, table: Path | None = None) -> View:
    """The view of a definition that was kept, over the source as it is declared now; its own reading where that has
    another version. Of a definition that is older than readings the columns of the master table say that.

    BatchError where that is not possible: the declaration is gone, or the source's fields mean something else now.
    """
    from master_dataset.table.readings import first_reading
    from views import serialization

    first = None if table is None else partial(first_reading, table, source)
    try:
        text = folder.store.get(_declared(definition_hash)).decode("utf-8")
        view = serialization.from_text(text, source, first)
    except (OSError, StoreError, UnicodeDecodeError, DeclarationError, MasterDatasetError) as error:
        raise BatchError(_not_restored(definition_hash, source, str(error))) from None
    if view.hash != definition_hash:
        raise BatchError(_not_restored(definition_hash, source, f"view {view.name!r} means something else over it"))
    return view


def _is_json(data: bytes) -> bool:
    try:
        return bool(json.loads(data))
    except ValueError:
        return False


def _name(definition_hash: str) -> str:
    return f"definitions/{definition_hash}"


def _declared(definition_hash: str) -> str:
    return f"definitions/{definition_hash}.declared"


def _not_restored(definition_hash: str, source: Source, why: str) -> str:
    return (
        f"Definition {definition_hash[:12]} cannot be computed over source {source.name!r} as it is declared now: "
        f"{why}. A batch run with the views that are declared now starts again: `tidemark batch run`."
    )


def store(folder: BatchFolder, definition_hash: str, text: str) -> None:
    """Keep a definition's text; it is on the disk when this returns. Storing it again changes nothing."""
    if not HASH.fullmatch(definition_hash):
        raise BatchError(f"{definition_hash!r} is no definition hash: it should be letters and digits.")
    if not folder.store.put_if_absent(_name(definition_hash), text.encode()) and load(folder, definition_hash) != text:
        raise BatchError(
            f"{str(folder.definitions / definition_hash)!r} holds another text than the definition of that hash. "
            "It was damaged: remove it, and `tidemark batch run` rewrites it."
        )


def load(folder: BatchFolder, definition_hash: str) -> str:
    """The text that was stored under a hash."""
    try:
        return folder.store.get(_name(definition_hash)).decode("utf-8")
    except (ObjectMissing, BadName):
        raise BatchError(
            f"There is no definition {definition_hash!r} in {str(folder.definitions)!r}. "
            "`tidemark batch run --full` stores those of the views that are declared now."
        ) from None
    except UnicodeDecodeError:
        raise BatchError(
            f"{str(folder.definitions / definition_hash)!r} is damaged: it is not UTF-8. Remove it, and run "
            "`tidemark batch run`."
        ) from None
