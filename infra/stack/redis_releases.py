"""Which releases of Redis have known holes, for `tidemark doctor`.

Whoever can sign in to Redis can run Lua scripts, as we do. In these releases a script can leave Lua's sandbox and run
code as the server's user.
"""

from __future__ import annotations

FIXED_IN = {(6, 2): 20, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2}
"""The first release of each series without CVE-2024-46981, CVE-2025-46817, CVE-2025-46818 and CVE-2025-49844."""
HOLES = "CVE-2025-49844, CVE-2025-46817 and older ones in its Lua sandbox"


def known_holes(version: tuple[int, ...]) -> str | None:
    """Which holes a release has, or None where none is known. Redis itself never fixed 7.0."""
    series, patch = (version[0], version[1]), version[2]
    if series > max(FIXED_IN) or patch >= FIXED_IN.get(series, patch + 1):
        return None
    return HOLES


def fixed_releases() -> str:
    """For a person: the releases that have none of them."""
    names = [f"{major}.{minor}.{patch}" for (major, minor), patch in FIXED_IN.items()]
    return f"{', '.join(names[:-1])} or {names[-1]}, or newer in the same series"
