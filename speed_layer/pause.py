"""Whether micro-batches wait for a run that is going to overtake the speed layer.

What they would compute meanwhile, the run skips. A run that died stops renewing its announcement, and one that hangs is
not waited for longer than a bound: so no run stops the speed layer for good.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class Pause:
    """The pause of one source, over all its streams."""

    max_s: float
    """How long one announced run is waited for; 0: not at all."""
    is_announced: Callable[[], bool]
    clock: Callable[[], float] = time.monotonic
    is_held: bool = field(default=False, init=False)
    """What `holds` said last, for the status."""
    _since: float | None = field(default=None, init=False)

    def holds(self) -> bool:
        """Whether the next micro-batch waits. Past the bound it does not, until the announcement has ended."""
        if not self.max_s or not self.is_announced():
            self._since = None
            self.is_held = False
            return False
        self._since = self.clock() if self._since is None else self._since
        self.is_held = self.clock() - self._since < self.max_s
        return self.is_held
