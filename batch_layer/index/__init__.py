"""The read index of batch views: LMDB files that processes share without a JVM. A run builds it (`builder.py`)."""

from __future__ import annotations

from batch_layer.index.layout import Level
from batch_layer.index.reader import Index, Tile, open_index
from batch_layer.index.sums import Sums

__all__ = ["Index", "Level", "Sums", "Tile", "open_index"]
