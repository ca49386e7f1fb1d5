"""The texts of view definitions, stored by hash: what a run of the publish log computed, for ever."""

from __future__ import annotations

import re

from batch_layer.errors import BatchError
from batch_layer.folders import BatchFolder
from infra.disk import make_folder, write_once

HASH = re.compile(r"[0-9a-zA-Z]{8,128}")


def store(folder: BatchFolder, definition_hash: str, text: str) -> None:
    """Keep a definition's text; it is on the disk when this returns. Storing it again changes nothing."""
    if not HASH.fullmatch(definition_hash):
        raise BatchError(f"{definition_hash!r} is no definition hash: it should be letters and digits.")
    make_folder(folder.definitions)
    if not write_once(folder.definitions / definition_hash, text) and load(folder, definition_hash) != text:
        raise BatchError(
            f"{str(folder.definitions / definition_hash)!r} holds another text than the definition of that hash. "
            "It was damaged: remove it, and `tidemark batch run` writes it anew."
        )


def load(folder: BatchFolder, definition_hash: str) -> str:
    """The text that was stored under a hash."""
    path = folder.definitions / definition_hash
    try:
        return path.read_bytes().decode("utf-8")  # byte for byte: read_text would change line ends
    except FileNotFoundError:
        raise BatchError(
            f"There is no definition {definition_hash!r} in {str(folder.definitions)!r}. "
            "`tidemark batch run --full` stores those of the views that are declared now."
        ) from None
    except UnicodeDecodeError:
        raise BatchError(
            f"{str(path)!r} is damaged: it is not UTF-8. Remove it, and run `tidemark batch run`."
        ) from None
