"""Spark's classes, kept as a JVM has them in memory: a session starts in two thirds of the time.

Java calls it class data sharing. The archive is made once, by `tidemark jars`, in the environment whose packages it was
made from. It is never needed: without one a JVM reads its jars as always. A JVM compares the jars with what the archive
says of them, but believes the archive itself, and crashes on a truncated one: so its size is part of its name.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from infra.disk import sync_file, sync_folder
from infra.errors import JarsError
from infra.java.find import Java
from infra.java.jars import JarSet, of_pyspark
from infra.stack.leash import leashed

FOLDER = Path(sys.prefix) / "share" / "tidemark"
MAKING_S = 600.0
UNUSED_S = 7 * 24 * 3600.0
"""An archive that was made longer ago goes when another is made: its packages or its Java are probably gone."""


def find_archive(java: Java, jars: JarSet, folder: Path = FOLDER) -> Path | None:
    """The archive of this Java and these jars, if there is one and it is whole."""
    for found in folder.glob(f"{_name(java, jars)}-*.jsa"):
        with suppress(OSError, ValueError):
            if found.stat().st_size == int(found.stem.rpartition("-")[2]):
                return found
    return None


def option(name: str, archive: Path) -> str:
    """An option of a JVM that names an archive. One that does not fit its jars is left without a word."""
    return f"{quoted(f'{name}={archive}')} -Xlog:cds=off -Xlog:cds+dynamic=off"


def quoted(option: str) -> str:
    """An option of a JVM as Spark takes it, which splits a text of them at spaces outside of quotes."""
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def make_archive(java: Java, jars: JarSet, folder: Path = FOLDER) -> Path:
    """The archive, made if it is not there."""
    if found := find_archive(java, jars, folder):
        return found
    name = _name(java, jars)
    making = folder / f"{name}.{os.getpid()}.making"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        making.touch()  # before a minute of work: a folder may be there and not ours to write
        _remove_old(folder, name)
        _train(making, java, jars)
        made = making.with_name(f"{name}-{making.stat().st_size}.jsa")
        sync_file(making)
        making.replace(made)
        sync_folder(folder)
    except OSError as error:
        raise JarsError(f"no archive can be made in {str(folder)!r}: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            making.unlink()
    return made


def _train(making: Path, java: Java, jars: JarSet) -> None:
    command = leashed([sys.executable, "-P", "-m", "infra.java.class_training", str(making)])
    environment = {**os.environ, "TIDEMARK_JAVA_HOME": str(java.home), "TIDEMARK_JARS_DIR": str(jars.folder.parent)}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    ) as training:  # fmt: skip
        try:
            output, _ = training.communicate(timeout=MAKING_S)
        except subprocess.TimeoutExpired:
            raise JarsError(f"no archive was written within {MAKING_S:g} s") from None
        finally:  # its JVM too: it would write the archive after all
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(training.pid, signal.SIGKILL)
    if training.returncode or not making.stat().st_size:
        raise JarsError(f"no archive was written: {output.strip()[-300:]}")


def _name(java: Java, jars: JarSet) -> str:
    """Another one for another Java, or other jars."""
    digest = hashlib.sha256(f"{java.home}\n".encode())
    for path in (java.home / "release", *of_pyspark(), *jars.spark):
        if path.is_file():
            found = path.stat()
            digest.update(f"{path} {found.st_size} {found.st_mtime_ns}\n".encode())
    return f"spark-{digest.hexdigest()[:16]}"


def _remove_old(folder: Path, name: str) -> None:
    """What is broken, was never finished, or is old. Another Java, or another path to here, may use the rest."""
    for path in [*folder.glob("spark-*.jsa"), *folder.glob("spark-*.making")]:
        with suppress(OSError):
            age_s = time.time() - path.stat().st_mtime
            if path.name.startswith(f"{name}-") or age_s > (UNUSED_S if path.suffix == ".jsa" else 2 * MAKING_S):
                path.unlink()
