"""What a session of ours has for itself: classes from the archive that `tidemark jars` made, a folder."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from infra.java.class_archive import find_archive
from infra.java.find import find_java
from infra.java.jars import cached_jars
from infra.settings import load_settings


def test_a_session_has_its_classes_from_the_archive(spark: SparkSession) -> None:
    settings = load_settings()
    archive = find_archive(find_java(settings.java_home), cached_jars(settings.jars_dir))
    assert archive is not None, "run `make setup`"
    assert spark._jvm is not None
    pid = spark._jvm.java.lang.ProcessHandle.current().pid()
    # One that does not fit is mapped for a moment, and let go again.
    assert str(archive) in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")


def test_temporary_files_of_libraries_are_in_the_folder_of_the_session(spark: SparkSession) -> None:
    assert spark._jvm is not None
    assert spark._jvm.java.lang.System.getProperty("java.io.tmpdir") == spark.conf.get("spark.local.dir")
