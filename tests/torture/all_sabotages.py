"""Try every sabotage by itself, and tell which were caught: `python -m tests.torture.all_sabotages FOLDER`."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from tests.torture.sabotaged import BY_NAME, caught


def main(arguments: list[str]) -> int:
    """Writes `sabotages.json` into the folder, for the report. Exit code 1: one was not caught."""
    folder, names = Path(arguments[0]), arguments[1:] or list(BY_NAME)
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, bool] = {}
    for name in names:
        place = folder / "installation"
        shutil.rmtree(place, ignore_errors=True)
        found |= caught(place, [BY_NAME[name]])
        print(f"{name}: {'caught' if found[name] else 'NOT CAUGHT'}", flush=True)
        (folder / "sabotages.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0 if all(found.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
