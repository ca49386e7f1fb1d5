"""What batch runs do to the speed views of a source: open a generation, publish, take over, overtake, retire, sweep."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hand_off.speed_views.layout import Announced, catalog_text, cut_of, cut_text, new_generation, new_id
from hand_off.speed_views.reader import SpeedReader
from hand_off.speed_views.scripts import Outcome, Scripts
from master_dataset.cut import Cut

WHICHEVER = "*"
"""Of seen ids: they go on, whichever generation is the newest."""
SWEEP_BUCKETS = 200
"""How many buckets one call of a script deletes."""


def _milliseconds(seconds: float) -> int:
    return max(int(seconds * 1000), 1)


class RunHandle:
    """The part of the hand-off that belongs to batch runs. No method needs the writer's token."""

    def __init__(self, scripts: Scripts, reader: SpeedReader) -> None:
        self._scripts, self._reader = scripts, reader

    def open(self, run: int, catalog: Iterable[str]) -> Cut | None:
        """Open a generation at what is applied now, for a run that computes `catalog`. None: there is no meta."""
        reply = self._scripts.call("open", new_id(), run, catalog_text(catalog))
        return None if reply is None else cut_of(reply)

    def adopt(self, run: int, catalog: Iterable[str], most: int) -> Cut | None:
        """Go on with the newest generation where `most` or more are of runs that were not published. Its cut, or None:
        there are fewer, or it lacks a view of `catalog`, and the run opens its own.
        """
        reply = self._scripts.call("adopt", run, catalog_text(catalog), most)
        return None if reply is None else cut_of(reply)

    def publish(self, run: int, cut: Cut) -> Outcome:
        """Let readers use a run of the publish log. Anybody may repeat it for its last entry."""
        return self._scripts.outcome("publish", run, cut_text(cut))

    def fence(self) -> tuple[str, Cut] | None:
        """The first step of a takeover: stop the writer. Returns our token and what is applied. None: no meta."""
        token = new_id()
        reply = self._scripts.call("fence", token)
        return None if reply is None else (token, cut_of(reply))

    def takeover(self, token: str, run: int, cut: Cut, catalog: Iterable[str], *, seen_by: str = WHICHEVER) -> Outcome:
        """The second step, after the durable append: the speed views start again at the run's cut.

        `seen_by`: the newest generation, if its views read records as those of the run do; empty: they do not. Where
        another one is the newest by now, and where none is given, all seen ids are loaded again.
        """
        made = new_generation(run, cut, catalog)
        return self._scripts.outcome("takeover", token, run, cut_text(cut), made, seen_by)

    def overtake(self, run: int, cut: Cut, catalog: Iterable[str], *, seen_by: str = WHICHEVER) -> Outcome:
        """After the durable append of a run at the master's end: its living writer goes on at the run's cut.

        BEHIND where the speed layer is past the cut on some partition: then there is no backlog any more. Anybody may
        repeat it for the last entry of the publish log, where that has no generation. `seen_by`: as in a takeover.
        """
        made = new_generation(run, cut, catalog)
        return self._scripts.outcome("overtake", run, cut_text(cut), made, seen_by)

    def announce(self, seconds: float) -> None:
        """Announce, by the run itself, that it is going to overtake the writer, which may wait for it instead of
        computing what the run will skip. The announcement ends by itself. No answer depends on it.
        """
        self._announce(Announced.BY_RUN, seconds)

    def forecast(self, seconds: float) -> bool:
        """Announce a run that is about to begin. False where the run has announced or declined by itself."""
        client, key, duration_ms = self._scripts.client, self._scripts.layout.overtaking, _milliseconds(seconds)
        if client.set(key, Announced.FORECAST, px=duration_ms, nx=True):
            return True
        is_forecast = client.get(key) == Announced.FORECAST
        if is_forecast and client.pttl(key) < duration_ms:
            client.pexpire(key, duration_ms)
        return is_forecast

    def renew_forecast(self, seconds: float) -> None:
        """Announce a run that is about to begin, whatever an earlier run announced or declined."""
        left_ms = self._scripts.client.pttl(self._scripts.layout.overtaking)
        self._announce(Announced.FORECAST, max(seconds, left_ms / 1000))

    def decline(self, seconds: float) -> None:
        """The run that was to overtake the writer does not: nobody waits for it, whatever was forecast."""
        self._announce(Announced.DECLINED, seconds)

    def _announce(self, value: bytes, seconds: float) -> None:
        self._scripts.client.set(self._scripts.layout.overtaking, value, px=_milliseconds(seconds))

    def withdraw(self) -> None:
        """End the announcement."""
        self._scripts.client.delete(self._scripts.layout.overtaking)

    def announce_load(self, name: str, events_to_come: int, seconds: float) -> None:
        """Announce that an import is at work: a run that overtakes waits until it ends, to hold all of it. Of several
        imports the last to say so counts. The announcement ends by itself. No answer depends on it.
        """
        value = f"{name} {events_to_come}"
        self._scripts.client.set(self._scripts.layout.loading, value, px=max(int(seconds * 1000), 1))

    def withdraw_load(self, name: str) -> None:
        """End the announcement of this import; that of another stays."""
        reply: Any = self._scripts.client.get(self._scripts.layout.loading)
        if reply is not None and reply.decode().rpartition(" ")[0] == name:
            self._scripts.client.delete(self._scripts.layout.loading)

    def retire(self, first: str) -> int:
        """Drop the generations before this one, except those still needed. Returns how many were dropped."""
        return int(self._scripts.call("retire", first))

    def unswept(self) -> list[str]:
        """Generations that were dropped and still have states."""
        current = {generation.gid for generation in self._reader.snapshot().generations}
        return [gid for gid in self._reader.known_generations() if gid not in current]

    def sweep(self, gid: str) -> int:
        """Delete the states of a generation that was dropped. Returns how many buckets were deleted."""
        swept, layout = 0, self._scripts.layout
        while True:
            buckets = list(self._reader.all_buckets(gid, SWEEP_BUCKETS))[:SWEEP_BUCKETS]
            keys = [
                key for view, bucket in buckets for key in (layout.buckets(gid, view), layout.data(gid, view, bucket))
            ]
            is_last = len(buckets) < SWEEP_BUCKETS
            arguments = [gid, int(is_last), *(bucket for _, bucket in buckets)]
            if self._scripts.write_states("sweep", keys, arguments) != Outcome.OK:
                return swept
            swept += len(buckets)
            if is_last:
                return swept

    def forget(self) -> bool:
        """Drop the speed views; the writer rebuilds them from the last published run. False: there were none."""
        return bool(self._scripts.call("forget"))
