"""Disks that can be filled and lose their power: what survives is what was synced, and no more."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.disk import replace_file, sync_file, sync_folder
from tests.conftest import wait_until
from torture import disks as module
from torture.disks import FOLDERS, Disks, missing


@pytest.fixture
def disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disks]:
    monkeypatch.setattr(module, "SIZE_MB", 32)
    made = Disks(tmp_path / "home", tmp_path / "images")
    made.mount()
    yield made
    made.throw_away()


def lose_power(disks: Disks) -> None:
    disks.lose_power()
    disks.unmount()
    disks.mount()


if reason := missing():

    def test_a_machine_without_the_right_says_so() -> None:
        assert reason

else:

    def test_only_what_was_synced_survives_the_loss_of_power(disks: Disks) -> None:
        place = disks.path("master")
        (place / "synced").write_text("kept")
        sync_file(place / "synced")
        sync_folder(place)
        (place / "never_synced").write_text("gone")
        with (place / "synced").open("a") as file:
            file.write(" and a tail that was not")
        (place / "renamed.partial").write_text("gone too")
        (place / "renamed.partial").replace(place / "renamed")
        lose_power(disks)
        assert {path.name: path.read_text() for path in place.iterdir()} == {"synced": "kept"}

    def test_a_file_replaced_as_we_do_it_survives(disks: Disks) -> None:
        for number in range(3):
            replace_file(disks.path(".") / "noted", str(number))
        lose_power(disks)
        assert (disks.path(".") / "noted").read_text() == "2"

    def test_a_full_disk_takes_nothing_more_and_the_others_do(disks: Disks) -> None:
        for folder in FOLDERS:
            with disks.full(folder):
                with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
                    (disks.path(folder) / "more").write_bytes(b"x" * 200_000)
                other = "logs" if folder != "logs" else "kafka"
                (disks.path(other) / "fits").write_bytes(b"x" * 200_000)
            (disks.path(folder) / "more").write_bytes(b"x" * 200_000)

    def test_what_becomes_free_on_a_full_disk_is_taken_too(disks: Disks) -> None:
        place = disks.path("kafka")
        (place / "old").write_bytes(b"x" * 4_000_000)
        sync_file(place / "old")
        with disks.full("kafka"):
            (place / "old").unlink()
            wait_until("the room to be taken", lambda: module._free_blocks(place) <= module.MIN_FREE, 10)
            with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
                (place / "new").write_bytes(b"x" * 2_000_000)
        (place / "new").write_bytes(b"x" * 2_000_000)

    def test_a_disk_that_was_full_once_is_not_full_again_after_a_loss_of_power(disks: Disks) -> None:
        place = disks.path("spark")
        with disks.full("spark"):
            sync_folder(place)  # the filler is on the disk, as after some time
        lose_power(disks)
        (place / "something").write_bytes(b"x" * 2**20)

    def test_what_is_there_stays_over_an_orderly_unmount(disks: Disks) -> None:
        (disks.path("redis") / "kept").write_text("yes")
        disks.unmount()
        disks.mount()
        assert (disks.path("redis") / "kept").read_text() == "yes"
