"""The jars: only a set that is whole and byte for byte the locked one is ever used."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from infra.errors import JarsError
from infra.java import jars
from infra.java.jars import JarSet, cached_jars, jars_folder, locked_hashes, verify

CONTENT = {"spark/one-1.0.jar": b"one", "spark/two-2.0.jar": b"two", "broker/one-1.1.jar": b"another one"}
LOCK = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()}


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache that holds the three jars of a small lock."""
    lock = tmp_path / "jars.sha256"
    lock.write_text("".join(f"{digest}  {name}\n" for name, digest in LOCK.items()))
    monkeypatch.setattr(jars, "HASH_FILE", lock)
    monkeypatch.setattr(jars, "locked_hashes", lambda: locked_hashes(lock))
    for name, content in CONTENT.items():
        path = jars_folder(tmp_path / "cache") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "cache"


def refusal(cache: Path) -> str:
    with pytest.raises(JarsError) as error:
        cached_jars(cache)
    return str(error.value)


def test_whole_set_is_taken(cache: Path) -> None:
    found = cached_jars(cache)
    assert [path.name for path in found.spark] == ["one-1.0.jar", "two-2.0.jar"]
    assert found.broker_class_path == str(jars_folder(cache) / "broker" / "*")


def test_absent_set_is_refused_with_the_command_that_fetches_it(tmp_path: Path) -> None:
    assert "Run `tidemark jars`" in refusal(tmp_path)


@pytest.mark.parametrize("name", CONTENT)
@pytest.mark.parametrize("content", [b"", b"on", b"two!"], ids=["empty", "cut off", "changed"])
def test_one_wrong_byte_anywhere_is_refused(cache: Path, name: str, content: bytes) -> None:
    (jars_folder(cache) / name).write_bytes(content)
    said = refusal(cache)
    assert f"{jars_folder(cache) / name}" in said
    assert "has the wrong content" in said
    assert LOCK[name][:16] in said
    assert f"rm -r {jars_folder(cache)}" in said


def test_missing_jar_is_refused(cache: Path) -> None:
    (jars_folder(cache) / "spark" / "two-2.0.jar").unlink()
    assert "lacks spark/two-2.0.jar" in refusal(cache)


def test_jar_that_nobody_locked_is_refused(cache: Path) -> None:
    """It would be on a class path: a stale or planted jar is as bad as a wrong one."""
    (jars_folder(cache) / "broker" / "extra-1.jar").touch()
    assert "has broker/extra-1.jar, which the lock does not name" in refusal(cache)


def test_many_missing_jars_make_a_short_sentence(tmp_path: Path) -> None:
    (tmp_path / "spark").mkdir()
    with pytest.raises(JarsError, match=r"lacks a, b, c and 7 more\. Remove"):
        verify(tmp_path, dict.fromkeys("abcdefghij", ""))


def test_changed_lock_is_another_folder(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An upgrade fetches its own jars and never meets the old ones."""
    other = tmp_path / "other.sha256"
    other.write_text("0" * 64 + "  spark/one-1.0.jar\n")
    before = jars_folder(cache)
    monkeypatch.setattr(jars, "HASH_FILE", other)
    assert jars_folder(cache) != before
    assert "are not in" in refusal(cache)


def test_lock_names_exactly_the_jars_of_ivy_xml() -> None:
    dependencies = ElementTree.parse(jars.IVY_FILE).findall("dependencies/dependency")  # noqa: S314  our own file
    named = sorted(
        f"{d.attrib['conf'].partition('->')[0]}/{d.attrib['name']}-{d.attrib['rev']}.jar" for d in dependencies
    )
    assert named == sorted(locked_hashes())
    assert all(d.attrib["transitive"] == "false" for d in dependencies)
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in locked_hashes().values())


def test_spark_gets_no_jar_that_pyspark_already_has() -> None:
    """Two versions of one library on a class path: which one wins is chance."""
    inside = {_artifact(path.name) for path in jars._ivy_jar().parent.glob("*.jar")}
    ours = {_artifact(name.removeprefix("spark/")) for name in locked_hashes() if name.startswith("spark/")}
    assert ours & inside == set()


def test_class_paths_of_spark_and_broker_are_apart() -> None:
    found = JarSet(Path("/jars"))
    assert found.broker_class_path == "/jars/broker/*"
    assert all(path.parent.name == "spark" for path in found.spark)


def _artifact(file_name: str) -> str:
    """`delta-spark_2.13-4.4.0.jar` -> `delta-spark_2.13`."""
    return re.sub(r"-\d[^-]*(-\w+)?\.jar$", "", file_name)
