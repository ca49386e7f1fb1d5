"""The low-water mark of disks: events are refused while there is still room for Kafka and the archiver to work.

A broker on a full disk stops, and may damage its own logs when it recovers; a refused event is sent again.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path

import structlog

from infra.home import Home
from infra.rest.problems import Problem
from infra.settings import Settings
from infra.stack.ports import LOOPBACK

LOOK_EVERY_S = 1.0
RETRY_AFTER_S = 30
RECOVERED = 1.1
"""So many times the mark must be free before events are taken again, so that it does not change every second."""

log = structlog.get_logger()


class FreeDisk:
    """The free space where events go. One task looks; requests only read what it found."""

    def __init__(self, folders: Mapping[str, Path], min_free_mb: float) -> None:
        self._folders = folders
        self.required = int(min_free_mb * 2**20)
        self.free: dict[str, int] = {}
        self.low: dict[str, str] = {}
        """By disk: what is wrong with it, as a sentence. Replaced, never changed."""

    @classmethod
    def of(cls, settings: Settings) -> FreeDisk:
        """The disks of our own Kafka, if this is it, and of the master dataset."""
        master, kafka = settings.master_dir or settings.home / "master", Home(settings.home).kafka
        is_ours = not settings.kafka_bootstrap or settings.kafka_bootstrap.startswith(f"{LOOPBACK}:")
        has_data = is_ours and (kafka / "data").is_dir()
        folders = {"kafka": kafka / "data", "master": master} if has_data else {"master": master}
        return cls(folders, settings.collector_min_free_disk_mb)

    async def watch(self) -> None:
        """Look every second, in a thread: a disk on the network may take its time."""
        while True:
            await asyncio.to_thread(self.look)
            await asyncio.sleep(LOOK_EVERY_S)

    def look(self) -> None:
        """Measure each disk, and note which are below the mark."""
        low = dict(self.low)
        for disk, folder in self._folders.items():
            try:
                free = shutil.disk_usage(_existing(folder)).free
            except OSError as error:  # whoever writes there will say so better
                log.warning("disk_not_measured", disk=disk, folder=str(folder), error=str(error))
                continue
            self.free[disk] = free
            if free < self.required:
                if disk not in self.low:
                    log.warning("disk_ran_low", disk=disk, folder=str(folder), free_bytes=free, required=self.required)
                low[disk] = (
                    f"The disk of {_NAMES[disk]} has {free // 2**20} MB free, and events are only taken above "
                    f"{self.required // 2**20} MB (collector_min_free_disk_mb)."
                )
            elif disk in self.low and free >= self.required * RECOVERED:
                del low[disk]
                log.info("disk_recovered", disk=disk, folder=str(folder), free_bytes=free)

        self.low = low  # at once: the event loop may just be reading the one before

    def check(self) -> None:
        """Raise the problem 507 while a disk is low."""
        for disk, text in self.low.items():
            raise Problem(
                507,
                "disk-almost-full",
                f"{text} Nothing was stored. Send it again later; the operator has to free space or to grow the disk.",
                retry_after_s=RETRY_AFTER_S,
                disk=disk,
                free_bytes=self.free[disk],
                required_bytes=self.required,
            )


_NAMES = {"kafka": "Kafka", "master": "the master dataset"}


def _existing(folder: Path) -> Path:
    return next(path for path in (folder, *folder.parents) if path.is_dir())
