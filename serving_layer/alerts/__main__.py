"""`python -m serving_layer.alerts`: run alerts, watches and feeds. Started by the supervisor, or alone."""

from __future__ import annotations

import sys

from serving_layer.alerts.process import main

if __name__ == "__main__":
    sys.exit(main())
