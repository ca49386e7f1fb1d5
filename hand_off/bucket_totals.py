"""The totals of views: for each bucket the states over all keys, kept beside the groups so that readers need not merge.

A writer writes both in the same step. Who asks for all keys together reads one state for a bucket.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hand_off.speed_views import ALL_KEYS, Group, totals_of
from views import states
from views.view import View


def by_name(views: Iterable[View]) -> dict[str, View]:
    """The views by the names that groups have: their own and their totals'."""
    return {name: view for view in views for name in (view.hash, totals_of(view.hash))}


def totals(view: View, packed: Mapping[Group, bytes]) -> dict[Group, bytes]:
    """The groups of a view -> its totals; none where it has no keys, for then it is one itself."""
    by_bucket: dict[int, list[bytes]] = {}
    for group, state in packed.items() if view.keys else ():
        by_bucket.setdefault(group.bucket, []).append(state)
    return {
        Group(totals_of(view.hash), bucket, ALL_KEYS): states.merge_packed(view.algebras, found)
        for bucket, found in by_bucket.items()
    }
