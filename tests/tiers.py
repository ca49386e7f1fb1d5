"""Two sizes of the same test: small in the gate, where each promise is proved once, and large in `make soak`."""

from __future__ import annotations

import os

IS_SOAK = os.environ.get("SOAK") == "1"


def times(gate: int, soak: int) -> int:
    """How often something is done, in the gate and in a soak."""
    return soak if IS_SOAK else gate
