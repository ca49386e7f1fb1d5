"""Try every sabotage by itself, and an intact build: `python -m tests.torture.all_sabotages FOLDER [NAME ...]`."""

from __future__ import annotations

import json
import shutil
import sys
import time
import traceback
from pathlib import Path

from tests.torture.sabotaged import BY_NAME, CONTROLS, caught, taken_for

INTACT = "an intact build"


def main(arguments: list[str]) -> int:
    """Writes `sabotages.json` into the folder, for the report. Exit code 1: one was not caught, or the intact build."""
    folder, names = Path(arguments[0]), arguments[1:] or [*BY_NAME, INTACT]
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, bool] = {}
    mistaken: list[str] = []
    for name in names:
        place, began = folder / "installation", time.monotonic()
        shutil.rmtree(place, ignore_errors=True)
        if name == INTACT:
            mistaken = _mistaken(place)
            print(f"{name}: {'taken for ' + ', '.join(mistaken) if mistaken else 'found right'}", flush=True)
            continue
        try:
            found |= caught(place, [BY_NAME[name]])
        except Exception:  # the others are tried all the same
            traceback.print_exc()
            found[name] = False
        print(f"{name}: {'caught' if found[name] else 'NOT CAUGHT'} in {time.monotonic() - began:.0f} s", flush=True)
        (folder / "sabotages.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0 if all(found.values()) and not mistaken else 1


def _mistaken(place: Path) -> list[str]:
    """The sabotages that intact builds are taken for."""
    found: list[str] = []
    for group in CONTROLS:
        shutil.rmtree(place, ignore_errors=True)
        found += [name for name, is_so in taken_for(place, group).items() if is_so]
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
