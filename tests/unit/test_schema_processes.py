"""The processes that schemas are compiled and compared in: they end by themselves when nobody else ends them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Sequence

import pytest

from views.formats import protobuf_schema
from views.formats.protobuf_schema import ProtobufError, compiled
from views.schemas.bounded_process import bounded
from views.schemas.protoc import MAX_CPU_S

pytestmark = pytest.mark.process

PARENT = """
import subprocess, sys
from views.schemas.bounded_process import bounded
subprocess.run(bounded(["/bin/sh", "-c", "echo started; exec sleep 600"], 60))
"""


def test_command_runs_with_its_arguments_and_exit_code() -> None:
    done = subprocess.run(
        bounded(["/bin/sh", "-c", 'echo "$1"; exit 7', "sh", "a 'b' ü"], 10),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.decode(), done.returncode) == ("a 'b' ü\n", 7)


def test_command_ends_when_its_cpu_time_is_used_up() -> None:
    done = subprocess.run(bounded([sys.executable, "-c", "while True: pass"], 1), timeout=300, check=False)
    assert done.returncode in (-signal.SIGXCPU, -signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a parent-death signal")
def test_command_ends_with_a_parent_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout
        assert parent.stdout.readline() == b"started\n"
        parent.kill()
        rest, _ = parent.communicate(timeout=60)  # ends once the command has closed its output, too
    assert rest == b""


def test_protoc_for_a_source_ends_when_its_cpu_time_is_used_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for the registry: the schemas that records name are compiled here, and they may be anybody's."""
    seen = []

    def endless(command: Sequence[str], cpu_s: int) -> list[str]:
        seen.append((command[-1], cpu_s))
        return bounded([sys.executable, "-c", "while True: pass"], 1)

    monkeypatch.setattr(protobuf_schema, "bounded", endless)
    with pytest.raises(ProtobufError, match=r"protoc took more than 22 s of CPU time for the schema\."):
        compiled('syntax = "proto3"; message Endless { int32 a = 1; }')
    assert seen == [("tidemark_schema.proto", MAX_CPU_S)]
