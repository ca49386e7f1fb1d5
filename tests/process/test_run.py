"""The second try of red tests: `python -m tests.run`, on small projects of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
XDIST = ("-p", "xdist")

FAILS_ONCE = """
    from pathlib import Path
    def fails_once(name="been-here"):
        been = Path(__file__).with_name(name)
        if not been.exists():
            been.touch()
            raise AssertionError("not yet")
    def test_green(): pass
"""
FAILS_ONCE_IN_CALL = FAILS_ONCE + "    def test_red(): fails_once()\n"
FAILS_ONCE_IN_SETUP = FAILS_ONCE + (
    "    import pytest\n"
    "    @pytest.fixture(scope='session')\n"
    "    def place(): fails_once()\n"
    "    def test_red(place): pass\n"
)
FAILS_ONCE_IN_TEARDOWN = FAILS_ONCE + (
    "    import pytest\n"
    "    @pytest.fixture\n"
    "    def place():\n"
    "        yield\n"
    "        fails_once()\n"
    "    def test_red(place): pass\n"
)


class Ran:
    """One run of the runner, and what it left."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        process = subprocess.run(
            [sys.executable, "-m", "tests.run", "--", "-p", "no:cacheprovider", *arguments],
            cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        self.exit_code = process.returncode
        self.text = process.stdout + process.stderr
        self.last = process.stdout.splitlines()[-1]
        self.flaky = json.loads((folder / "artifacts" / "flaky.json").read_text())


def project(folder: Path, **files: str) -> Path:
    """A folder of test files."""
    (folder / "pytest.ini").write_text("[pytest]\n")
    for name, text in files.items():
        lines = text.splitlines()
        (folder / f"{name}.py").write_text("\n".join(line.removeprefix("    ") for line in lines) + "\n")
    return folder


@pytest.mark.parametrize(
    ("text", "workers"),
    [
        pytest.param(FAILS_ONCE_IN_CALL, (), id="call"),
        pytest.param(FAILS_ONCE_IN_SETUP, (*XDIST, "-n", "2"), id="setup, workers"),
        pytest.param(FAILS_ONCE_IN_TEARDOWN, (), id="teardown"),
    ],
)
def test_test_that_is_red_once_is_flaky_and_the_run_passes(tmp_path: Path, text: str, workers: tuple[str, ...]) -> None:
    ran = Ran(project(tmp_path, test_it=text), *workers)
    assert ran.exit_code == 0, ran.text
    assert ran.last == "2 passed, 0 failed"
    assert "FLAKY test_it.py::test_red" in ran.text
    assert [(entry["run"], entry["test"]) for entry in ran.flaky] == [("test", "test_it.py::test_red")]
    assert "not yet" in ran.flaky[0]["first_failure"]


def test_test_that_is_red_twice_fails_the_run_beside_a_flaky_one(tmp_path: Path) -> None:
    ran = Ran(project(tmp_path, test_it=FAILS_ONCE_IN_CALL + "    def test_broken(): assert False\n"))
    assert ran.exit_code == 1, ran.text
    assert ran.last == "2 passed, 1 failed"
    assert "FAILED test_it.py::test_broken" in ran.text
    assert [entry["test"] for entry in ran.flaky] == ["test_it.py::test_red"]


def test_parametrized_test_is_tried_again_by_its_own_case_alone(tmp_path: Path) -> None:
    cases = FAILS_ONCE + (
        "    import pytest\n"
        "    @pytest.mark.parametrize('case', ['a b/[c]', 'd::e'])\n"
        "    def test_red(case): fails_once(case[0])\n"
    )
    ran = Ran(project(tmp_path, test_it=cases))
    assert ran.exit_code == 0, ran.text
    assert ran.last == "3 passed, 0 failed"
    assert [entry["test"] for entry in ran.flaky] == ["test_it.py::test_red[a b/[c]]", "test_it.py::test_red[d::e]"]


def test_test_that_builds_on_others_is_tried_again_with_its_file(tmp_path: Path) -> None:
    built = FAILS_ONCE + (
        "    import pytest\n"
        "    pytestmark = pytest.mark.in_order\n"
        "    done = []\n"
        "    def test_first(): done.append(1)\n"
        "    def test_second():\n"
        "        assert done\n"
        "        fails_once()\n"
    )
    ran = Ran(project(tmp_path, test_it=built), "-W", "ignore")
    assert ran.exit_code == 0, ran.text
    assert ran.last == "3 passed, 0 failed"
    assert [entry["test"] for entry in ran.flaky] == ["test_it.py::test_second"]


def test_test_that_judges_answers_under_faults_is_not_tried_again(tmp_path: Path) -> None:
    judging = FAILS_ONCE + (
        "    import pytest\n    @pytest.mark.no_second_try\n    def test_no_wrong_answer(): fails_once()\n"
    )
    ran = Ran(project(tmp_path, test_it=judging), "-W", "ignore")
    assert ran.exit_code == 1, ran.text
    assert ran.last == "1 passed, 1 failed"
    assert ran.flaky == []


def test_test_that_is_skipped_at_the_second_try_is_red(tmp_path: Path) -> None:
    skipping = FAILS_ONCE + (
        "    import pytest\n    def test_red():\n        fails_once()\n        pytest.skip('not today')\n"
    )
    ran = Ran(project(tmp_path, test_it=skipping))
    assert ran.exit_code == 1, ran.text
    assert ran.last == "1 passed, 1 failed"


def test_green_run_is_run_once_and_keeps_what_was_flaky_before(tmp_path: Path) -> None:
    folder = project(
        tmp_path, test_it="    import pytest\n    def test_green(): pass\n    def test_no(): pytest.skip()"
    )
    (folder / "artifacts").mkdir()
    earlier = [{"run": name, "test": "test_it.py::test_red", "first_failure": ""} for name in ("test", "faults")]
    (folder / "artifacts" / "flaky.json").write_text(json.dumps(earlier))
    ran = Ran(folder)
    assert ran.exit_code == 0, ran.text
    assert ran.last == "1 passed, 0 failed, 1 skipped"
    assert "again" not in ran.text
    assert ran.flaky == earlier


def test_runs_of_one_name_do_not_overwrite_what_the_one_before_found(tmp_path: Path) -> None:
    """The gate runs several steps, and a step is run again and again."""
    folder = project(tmp_path, test_it=FAILS_ONCE_IN_CALL)
    Ran(folder)
    (folder / "test_it.py").write_text((folder / "test_it.py").read_text().replace("been-here", "been-there"))
    ran = Ran(folder)
    assert ran.exit_code == 0, ran.text
    assert [entry["test"] for entry in ran.flaky] == ["test_it.py::test_red"] * 2
    assert [datetime.fromisoformat(entry["at"]).tzinfo for entry in ran.flaky] == [UTC] * 2


@pytest.mark.parametrize(
    ("text", "workers", "last"),
    [
        pytest.param("    import nothing_of_the_kind", (), "0 passed, 0 failed, 1 errors", id="collection"),
        pytest.param(
            "    import os\n    def test_end(): os._exit(3)", (*XDIST, "-n", "1", "--max-worker-restart", "0"),
            "0 passed, 0 failed, 1 errors", id="crashed worker",
        ),
        pytest.param("    import os\n    def test_end(): os._exit(3)", (), "0 passed, 0 failed, 1 errors", id="no end"),
        pytest.param(
            "    import pytest\n    @pytest.mark.parametrize('n', range(11))\n    def test_broken(n): assert False", (),
            "0 passed, 11 failed", id="too many",
        ),
        pytest.param("", (), "0 passed, 0 failed", id="nothing"),
    ],
)  # fmt: skip
def test_what_is_no_accident_fails_the_run_at_once(
    tmp_path: Path, text: str, workers: tuple[str, ...], last: str
) -> None:
    ran = Ran(project(tmp_path, test_it=text), *workers)
    assert ran.exit_code != 0, ran.text
    assert ran.last == last, ran.text
    assert "again, alone" not in ran.text
    assert ran.flaky == []
