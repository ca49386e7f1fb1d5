"""Every fault there is: each module of this package has a list `FAULTS`."""

from __future__ import annotations

import importlib
import pkgutil

from torture.fault import Fault


def all_faults() -> list[Fault]:
    """In the order of the modules' names and of their lists: the same on every machine."""
    names = sorted(found.name for found in pkgutil.iter_modules(__path__))
    return [fault for name in names for fault in importlib.import_module(f"{__name__}.{name}").FAULTS]
