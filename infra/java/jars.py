"""The jars of Spark and the broker: named by ivy.xml, held to jars.sha256, kept in a cache of the user.

They are fetched by the Ivy that ships inside PySpark. A set of jars appears in the cache by one rename, after every
hash was found right: a download that was cut off is never taken for complete.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit
from xml.etree import ElementTree

from infra.errors import JarsError
from infra.java.find import Java
from infra.locks import hold
from infra.stack.leash import leashed

IVY_FILE = Path(__file__).with_name("ivy.xml")
IVY_SETTINGS_FILE = Path(__file__).with_name("ivysettings.xml")
HASH_FILE = Path(__file__).with_name("jars.sha256")

Progress = Callable[[int, int, str], None]
"""Called with jars done, jars in all, and what is being done."""


class JarSet(NamedTuple):
    """The verified jars, ready for two class paths that must never be mixed."""

    folder: Path

    @property
    def broker_class_path(self) -> str:
        """Everything a Kafka broker needs."""
        return str(self.folder / "broker" / "*")

    @property
    def spark(self) -> list[Path]:
        """What Spark needs beside the jars inside the pyspark wheel."""
        return sorted((self.folder / "spark").glob("*.jar"))


def locked_hashes(hash_file: Path = HASH_FILE) -> dict[str, str]:
    """`spark/delta-storage-4.4.0.jar` -> its sha256, as checked in."""
    lines = hash_file.read_text(encoding="utf-8").splitlines()
    return {name: digest for digest, name in (line.split("  ", 1) for line in lines if line)}


def jars_folder(jars_dir: Path) -> Path:
    """Where this version's jars live: the name changes whenever the lock does."""
    lock = hashlib.sha256(HASH_FILE.read_bytes()).hexdigest()[:16]
    return jars_dir / lock


def cached_jars(jars_dir: Path) -> JarSet:
    """The jars from the cache, every hash checked. Needs no network."""
    folder = jars_folder(jars_dir)
    if not folder.is_dir():
        raise JarsError(
            f"The jars of Kafka and Spark are not in {str(jars_dir)!r} yet. Run `tidemark jars` (or `make setup`)."
        )
    verify(folder, locked_hashes())
    return JarSet(folder)


def fetch_jars(
    java: Java, jars_dir: Path, ivy_settings: Path | None = None, progress: Progress | None = None
) -> JarSet:
    """The jars, from the cache or fetched into it. Several processes may call this at once."""
    folder = jars_folder(jars_dir)
    if folder.is_dir():
        return cached_jars(jars_dir)
    try:
        jars_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise JarsError(f"jars_dir is {str(jars_dir)!r}, which cannot be made: {error.strerror}.") from None
    with hold(jars_dir / ".lock"):
        if not folder.is_dir():
            _fetch(java, folder, ivy_settings or IVY_SETTINGS_FILE, progress or (lambda *_: None))
    return cached_jars(jars_dir)


def verify(folder: Path, expected: dict[str, str]) -> None:
    """Raise JarsError unless `folder` holds exactly the jars of `expected`, byte for byte."""
    found = {str(path.relative_to(folder)): path for path in sorted(folder.glob("*/*.jar"))}
    if missing := sorted(expected.keys() - found.keys()):
        raise JarsError(f"{str(folder)!r} lacks {_some(missing)}. {_remedy(folder)}")
    if extra := sorted(found.keys() - expected.keys()):
        raise JarsError(f"{str(folder)!r} has {_some(extra)}, which the lock does not name. {_remedy(folder)}")
    with ThreadPoolExecutor() as pool:
        digests = dict(zip(found, pool.map(sha256, found.values()), strict=True))
    for name, digest in digests.items():
        if digest != expected[name]:
            raise JarsError(
                f"{str(folder / name)!r} has the wrong content: sha256 {digest[:16]}…, "
                f"but the lock says {expected[name][:16]}…. {_remedy(folder)}"
            )


def sha256(path: Path) -> str:
    """The hex sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_lock(java: Java, jars_dir: Path, ivy_settings: Path | None = None) -> int:
    """Fetch what ivy.xml names and write its hashes into jars.sha256. Returns the number of jars."""
    staging = jars_dir / "relock"
    try:
        run_ivy(java, staging, ivy_settings)
        lines = [
            f"{sha256(path)}  {path.relative_to(staging / 'jars')}\n" for path in sorted(staging.glob("jars/*/*.jar"))
        ]
        HASH_FILE.write_text("".join(lines), encoding="utf-8")
        return len(lines)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _remedy(folder: Path) -> str:
    return f"Remove the folder and run `tidemark jars` again: rm -r {shlex.quote(str(folder))}"


def _fetch(java: Java, folder: Path, ivy_settings: Path, progress: Progress) -> None:
    # Step 1. Into a staging folder. If the connection breaks, Ivy's own cache stays there for the next attempt.
    staging = folder.with_name(f"{folder.name}.partial")
    run_ivy(java, staging, ivy_settings, progress)
    # Step 2. Every hash, before anybody can see a jar. What is wrong is thrown away, so that a retry starts clean.
    try:
        verify(staging / "jars", locked_hashes())
    except JarsError as error:
        shutil.rmtree(staging)
        raise JarsError(f"What was fetched is not what was locked, so it was thrown away. {error}") from None
    # Step 3. One rename makes the set visible, whole.
    (staging / "jars").rename(folder)
    shutil.rmtree(staging)


def run_ivy(
    java: Java,
    staging: Path,
    ivy_settings: Path | None = None,
    progress: Progress = lambda *_: None,
    ivy_file: Path | None = None,
) -> None:
    """Fetch what an ivy.xml names, ours by default, for each of its configurations into `jars/CONFIGURATION`."""
    ivy_file = ivy_file or IVY_FILE
    named = ElementTree.parse(ivy_file)  # noqa: S314  our own file
    total = len(named.findall("dependencies/dependency"))
    configurations = [each.attrib["name"] for each in named.findall("configurations/conf")]
    command = [
        str(java.program), *_proxy_options(), "-cp", str(_ivy_jar()), "org.apache.ivy.Main",
        "-settings", str(ivy_settings or IVY_SETTINGS_FILE), "-ivy", str(ivy_file), "-cache", str(staging / "ivy"),
        "-retrieve", str(staging / "jars" / "[conf]" / "[artifact]-[revision].[ext]"),
        "-confs", *configurations,
    ]  # fmt: skip
    shutil.rmtree(staging / "jars", ignore_errors=True)
    progress(0, total, "asking the repository")
    output = []
    with subprocess.Popen(leashed(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ivy:
        done = 0
        for line in ivy.stdout or ():
            output.append(line.rstrip())
            if found := re.search(r"\[SUCCESSFUL \] \S+?#(\S+?);", line):
                done += 1
                progress(done, total, found[1])
    if ivy.returncode or not (staging / "jars").is_dir():
        raise JarsError(_reason(output))
    progress(total, total, "checking hashes")


def _reason(output: list[str]) -> str:
    missing = [line.strip(" :\t") for line in output if re.search(r"::\s+\S+#\S+;\S+: ", line)]
    first = "; ".join(missing[:3]) or next((line for line in reversed(output) if line.strip()), "no output")
    return (
        f"{len(missing) or 'Some'} jars could not be fetched ({first}). "
        "Is the network there? Behind a proxy, set https_proxy; for a mirror, set TIDEMARK_IVY_SETTINGS. "
        "What was fetched is kept for the next try."
    )


def _proxy_options() -> list[str]:
    """Java does not read the environment's proxy: tell it."""
    options = []
    for scheme in ("http", "https"):
        address = urlsplit(os.environ.get(f"{scheme}_proxy") or os.environ.get(f"{scheme.upper()}_PROXY") or "")
        if address.hostname:
            options += [f"-D{scheme}.proxyHost={address.hostname}", f"-D{scheme}.proxyPort={address.port or 8080}"]
    return options


def of_pyspark(pattern: str = "*.jar") -> list[Path]:
    """The jars inside the wheel, found without importing pyspark (which costs half a second)."""
    spec = find_spec("pyspark")
    return sorted(Path(spec.origin).parent.glob(f"jars/{pattern}")) if spec and spec.origin else []


def _ivy_jar() -> Path:
    found = of_pyspark("ivy-*.jar")
    if not found:
        raise JarsError("pyspark is not installed here, or has no Ivy among its jars. Run `make setup`.")
    return found[-1]
