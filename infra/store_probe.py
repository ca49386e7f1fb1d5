"""Try a store before it is trusted: one that lets two creators win is refused."""

from __future__ import annotations

import secrets
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from infra.store import PosixStore, Store, StoreUnsafe

if TYPE_CHECKING:
    from infra.settings import Settings

T = TypeVar("T")
RACERS = 4
ROUNDS = 5
FOLDER = "probe"


def shared_folders(settings: Settings) -> list[Path]:
    """The folders whose files several processes share, as far as they exist."""
    named = (settings.home, settings.master_dir, settings.batch_dir)
    return [folder for folder in named if folder is not None and folder.is_dir()]


def probe_folder(folder: Path, rounds: int = 1) -> None:
    """Raise StoreUnsafe where a store in this folder would break a promise. It leaves nothing behind."""
    own = folder / f".probe-{secrets.token_hex(8)}"
    try:
        probe(PosixStore(own), rounds)
    finally:
        shutil.rmtree(own, ignore_errors=True)


def probe(store: Store, rounds: int = ROUNDS) -> None:
    """Raise StoreUnsafe where a promise is broken: one creator wins, one replacement of a version wins, losers change
    nothing, and what was written is read, listed and deleted. It leaves no object behind.
    """
    run = secrets.token_hex(8)
    try:
        for number in range(rounds):
            _probe_object(store, f"{FOLDER}/{run}.{number}")
    finally:
        for name in [*store.list(f"{FOLDER}/{run}")]:
            store.delete(name)
    if [*store.list(f"{FOLDER}/{run}")]:
        raise StoreUnsafe(f"{store!r} lists an object that was deleted. Use another folder or store.")


def _probe_object(store: Store, name: str) -> None:
    texts = [f"racer {racer} {secrets.token_hex(8)}".encode() for racer in range(RACERS)]
    created = _race([lambda text=text: store.put_if_absent(name, text) for text in texts])  # type: ignore[misc]
    _check_one(store, "creators of one object", created)
    winner = texts[created.index(True)]
    if store.put_if_absent(name, b"too late"):
        raise StoreUnsafe(f"{store!r} created an object that was there already. {_ADVICE}")
    found = store.read(name)
    if found.data != winner or store.get(name, 1, 7) != winner[1:7] or [*store.list(name)] != [name]:
        raise StoreUnsafe(f"{store!r} gives back another object than was written: {found.data!r}. {_ADVICE}")
    replaced = _race([lambda text=text: store.replace_if(name, found.version, text) for text in texts])  # type: ignore[misc]
    _check_one(store, "replacements of one version", [each is not None for each in replaced])
    if store.replace_if(name, found.version, b"too late") is not None:
        raise StoreUnsafe(f"{store!r} replaced a version that was replaced already. {_ADVICE}")
    if store.read(name).version != next(each for each in replaced if each is not None):
        raise StoreUnsafe(f"{store!r} let a replacement through that it had refused. {_ADVICE}")


_ADVICE = (
    "Two processes could then both publish, and answers would be wrong, so it is not used. "
    "Use a folder on a local disk."
)


def _check_one(store: Store, what: str, outcomes: list[bool]) -> None:
    if sum(outcomes) != 1:
        raise StoreUnsafe(f"{store!r} let {sum(outcomes)} of {len(outcomes)} {what} win. {_ADVICE}")


def _race(acts: list[Callable[[], T]]) -> list[T]:
    """What each returned; all begin at once."""
    gate = threading.Barrier(len(acts))

    def start(act: Callable[[], T]) -> T:
        gate.wait()
        return act()

    with ThreadPoolExecutor(len(acts)) as pool:
        return list(pool.map(start, acts))
