"""The front door: every public name can be imported from `tidemark`, and importing the package loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

import tidemark


@pytest.mark.parametrize("name", tidemark.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert callable(getattr(tidemark, name))


def test_list_of_names_and_their_modules_are_in_step() -> None:
    assert sorted(tidemark._HOMES) == tidemark.__all__


def test_unknown_name_is_refused_as_python_does() -> None:
    with pytest.raises(ImportError, match="Counter"):
        from tidemark import Counter  # noqa: F401 -- the import is what is tried


def test_declarations_load_neither_spark_nor_fastapi() -> None:
    code = (
        "import sys; from tidemark import Count, View; print([m for m in ('pyspark', 'fastapi') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
