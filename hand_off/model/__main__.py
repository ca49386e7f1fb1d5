"""`python -m hand_off.model`: explore all scenarios."""

from __future__ import annotations

import sys

from hand_off.model.program import main

if __name__ == "__main__":
    sys.exit(main())
