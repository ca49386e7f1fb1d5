"""`python -m speed_layer`: keep the speed views of all sources. Run by the supervisor, or alone."""

from __future__ import annotations

import sys

from speed_layer.process import main

if __name__ == "__main__":
    sys.exit(main())
