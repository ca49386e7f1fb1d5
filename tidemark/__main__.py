"""`python -m tidemark`: the `tidemark` command, where its script is not on PATH."""

from __future__ import annotations

from tidemark.cli import main

main()
