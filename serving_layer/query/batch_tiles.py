"""The tiles of the batch view that a small plan needs, each with its name, so that one of them can be read again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import NamedTuple

from batch_layer.index import Tile
from batch_layer.index.layout import Level
from hand_off.errors import BatchError
from serving_layer.query.limits import QueryBudget
from serving_layer.query.plan import QueryPlan
from serving_layer.readers.batch import OpenRun, read_errors, tiles


class TileName(NamedTuple):
    """Where a tile is in the index of a view. A run never changes, so it stays there."""

    level: Level
    bucket: int
    key: bytes


class NamedTile(NamedTuple):
    """A tile with its name."""

    name: TileName
    tile: Tile


def read_named(plan: QueryPlan, run: OpenRun, budget: QueryBudget, max_tiles: int) -> list[NamedTile] | None:
    """The tiles of a whole plan, in the order in which execute.py reads them; None where there are more."""
    with read_errors(run):
        found = list(islice(_tiles(plan, run, budget), max_tiles + 1))
    return found if len(found) <= max_tiles else None


def read_again(plan: QueryPlan, run: OpenRun, names: Iterable[TileName]) -> Iterator[Tile]:
    """Tiles by their names. Each takes one look into the index, which `read_named` has opened."""
    for level, bucket, key in names:
        found = list(run.index(plan.query.view.name).of_key(level, key, bucket, bucket + 1))
        if len(found) != 1:
            raise BatchError(f"The tile at {bucket} of the key {key[:40].hex()} was there, and is missing.")
        yield found[0]


def _tiles(plan: QueryPlan, run: OpenRun, budget: QueryBudget) -> Iterator[NamedTile]:
    name = plan.query.view.name
    if not run.has_days(name, plan.ranges):
        return
    index, keys = run.index(name), dict[bytes, bytes]()
    for tile_range in plan.segments.tile_ranges(index.levels):
        for tile in tiles(index, [tile_range], plan.selection, budget.check_time, is_total=plan.is_total):
            key = keys.setdefault(tile.key, tile.key)  # held once, however many tiles it has
            yield NamedTile(TileName(tile_range.level, tile.bucket, key), tile)
