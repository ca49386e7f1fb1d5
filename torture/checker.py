"""Query the serving layer all the time, and recompute every answer at the cut that it reports."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import httpx

from master_dataset.cut import Cut, is_below
from torture.comparison import ServedAnswer, compare, last_position
from torture.errors import TortureError
from torture.installation import Installation
from torture.questions import PAGE_ROWS, as_json, question
from torture.result import Violation
from torture.truth import Truth
from views.errors import DeclarationError
from views.view import View

PAUSE_S = 0.1
AWAY_S = 0.2
TIMEOUT_S = 20.0
MAX_WAITING = 200
READ_BACK_S = 30.0
FINE = (429, 503)
MAX_VALUE_LENGTH = 100
TOGETHER, MAX_TOGETHER = 0.15, 3
"""How often several questions are asked in one request, at one cut."""
MAX_PAGES = 12
QUARANTINED = re.compile(r"\bquarantined?\b")
"""The reason of an answer says so."""
VERSION = 16
"""So many characters of its hash tell a view's version."""


@dataclass
class LatestAnswer:
    """The newest answer of a view: how far it goes, and whether it is complete."""

    cut: dict[int, int] = field(default_factory=dict)
    is_degraded: bool = True
    at: float = 0.0
    reason: str = ""

    @property
    def is_quarantined(self) -> bool:
        """Whether it is made of the batch view alone, because the speed view was found wrong."""
        return self.is_degraded and bool(QUARANTINED.search(self.reason))


class Checker:
    """A thread that asks, and judges what can be judged by now. What there is to ask about, it learns on the way."""

    def __init__(self, installation: Installation, truth: Truth, seed: int, began: float) -> None:
        self._installation, self._truth, self._began = installation, truth, began
        self._chance = random.Random(f"questions {seed}")  # noqa: S311  # which question comes when
        self._waiting: deque[ServedAnswer] = deque()
        self._highest: dict[str, dict[int, int]] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="checker", daemon=True)
        self.seen = LatestAnswer()
        """The newest answer, of whichever view."""
        self.by_view: dict[str, LatestAnswer] = {}
        self.answers, self.comparisons, self.degraded = 0, 0, 0
        self.refusals: Counter[str] = Counter()
        self.quarantined: dict[tuple[str, str], str] = {}
        """By view and reason, when an answer first said that its speed view was quarantined."""
        self.wrong: list[Violation] = []
        self.regressions: list[str] = []
        views = list(installation.declared.views_of(installation.source_name))
        self._first = {view.name for view in views}
        """Declared from the beginning; others may join and go."""
        self._known: dict[str, dict[str, str]] = {}
        """Values of the keys of each view, as rows had them."""
        self._views = {view.hash[:VERSION]: view for view in views}
        self._served: dict[str, str] = {}
        """The version of each view that was last answered."""
        self.pace_s = PAUSE_S
        self._serving_pid: int | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more, and judge what is left."""
        self._stopping.set()
        self._thread.join(120)
        until = time.monotonic() + READ_BACK_S  # for all of them: there may be many that claim what does not exist
        for answered in self._waiting:
            self._truth.wait(answered.cut, max(until - time.monotonic(), 0))
        self._judge()
        for left in self._waiting:
            self.note("an answer at a cut that Kafka does not have", f"{left.view.name} at {left.cut}")

    def note(self, what: str, detail: str) -> None:
        """Something that must never be."""
        self.wrong.append(Violation(round(time.monotonic() - self._began, 2), what, detail[:2000]))

    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    # ---- asking ----

    def _run(self) -> None:
        with self._installation.client("serving", TIMEOUT_S) as client:
            while not self._stopping.is_set():
                try:
                    pause = self._turn(client)
                except Exception as error:  # a mistake of ours must not look like a platform that is never wrong
                    self.note("the checker failed", repr(error))
                    pause = 1.0
                self._stopping.wait(pause)

    def _turn(self, client: httpx.Client) -> float:
        self._judge()
        hours = self._truth.times()
        if not hours or len(self._waiting) >= MAX_WAITING:
            return AWAY_S
        declared = self._declared()
        for name in self.by_view.keys() - {view.name for view in declared}:
            del self.by_view[name]
        if self._chance.random() < TOGETHER:
            there = [view for view in declared if view.name in self._first or view.name in self.by_view]
            views = [self._chance.choice(there) for _ in range(self._chance.randint(1, MAX_TOGETHER))]
            is_answered = self._ask_together(client, [(view, self._question(view, hours)) for view in views])
        else:
            view = self._chance.choice(declared)
            query = self._question(view, hours)
            is_paged = "order" not in query and int(query["limit"]) in PAGE_ROWS
            is_answered = (self._ask_pages if is_paged else self.ask)(client, view, query)
        return self.pace_s if is_answered else AWAY_S

    def _question(self, view: View, hours: list[int]) -> dict[str, str]:
        return question(view, hours, self._chance, self._known.get(view.name))

    def _declared(self) -> list[View]:
        """The views that are asked about: as they are declared now."""
        found = self._installation.declared.views_of(self._installation.source_name)
        return sorted(found, key=lambda view: view.name)

    def behind(self, ends: Cut, since: float = 0.0, *, except_quarantined: bool = False) -> list[str]:
        """The views of which no complete answer with everything below `ends` came after `since` (seconds of the run).

        One that never joined is not among them. `except_quarantined`: nor is one that is quarantined.
        """
        names = {view.name for view in self._declared()}
        found = {
            name: self.by_view.get(name, LatestAnswer())
            for name in names
            if name in self._first or name in self.by_view
        }
        return sorted(
            name
            for name, seen in found.items()
            if seen.at - self._began <= since
            or not ((not seen.is_degraded and is_below(ends, seen.cut)) or (except_quarantined and seen.is_quarantined))
        )

    def ask(self, client: httpx.Client, view: View, query: dict[str, str]) -> bool:
        """One question; False: there was no answer."""
        body = self._sent([view], lambda: client.get(f"/views/{view.name}/query", params=query))
        answered = body and self._answered(view, query, body)
        if not answered:
            return False
        self._waiting.append(answered)
        return True

    def _ask_together(self, client: httpx.Client, questions: list[tuple[View, dict[str, str]]]) -> bool:
        """Several questions in one request: their answers are at one cut."""
        views = [view for view, _ in questions]
        query = {"questions": [as_json(view, query) for view, query in questions]}
        body = self._sent(views, lambda: client.post("/query", json=query))
        if not body:
            return False
        found = [self._answered(*each, answer) for each, answer in zip(questions, body["answers"], strict=True)]
        answers = [each for each in found if each]
        for is_degraded in (False, True):  # a quarantined view is at the cut of the batch view
            cuts = [json.dumps(e.meta["cut"], sort_keys=True) for e in answers if e.meta["degraded"] is is_degraded]
            if len({*cuts}) > 1:
                self.note("answers of one request at several cuts", "; ".join(cuts))
        self._waiting += answers
        return True

    def _ask_pages(self, client: httpx.Client, view: View, query: dict[str, str]) -> bool:
        """All pages of an answer, or the first of them."""
        first: ServedAnswer | None = None
        asked_for, after = query, None
        for _ in range(MAX_PAGES):
            send = partial(client.get, f"/views/{view.name}/query", params=asked_for)
            body = self._sent([view], send, first)
            page = body and self._answered(view, query, body)
            if not page or (first and page.view is not first.view):
                break  # nobody there, or it became another view meanwhile
            page = replace(page, after=after)
            self._waiting.append(page)
            first, after = first or page, last_position(page)
            if page.body["next"] is None:
                break
            asked_for = {**query, "cursor": page.body["next"]}
        return first is not None

    def _sent(
        self, views: list[View], send: Callable[[], httpx.Response], first: ServedAnswer | None = None
    ) -> dict[str, Any] | None:
        """What came back; None: no answer, which was written down."""
        try:
            answer = send()
        except httpx.HTTPError as error:
            self.refusals["timeout" if isinstance(error, httpx.ReadTimeout) else "0"] += 1
            return None
        if answer.status_code != 200:
            self._refused(views, answer, first)
            return None
        found: dict[str, Any] = answer.json()
        return found

    def _answered(self, view: View, query: dict[str, str], body: dict[str, Any]) -> ServedAnswer | None:
        served = self._version(view, body["meta"]["version"])
        if served is None:
            self.note("an answer of an unknown version", f"{view.name}: {body['meta']}")
            return None
        answered = ServedAnswer(served, query, body, time.monotonic())
        self._served[view.name] = served.hash[:VERSION]
        self._follow(answered)
        return answered

    def _refused(self, views: list[View], answer: httpx.Response, first: ServedAnswer | None) -> None:
        self.refusals[str(answer.status_code)] += 1
        if answer.status_code == 404 and any(v.name not in self._first and v.name not in self.by_view for v in views):
            return  # it was just declared, and the process has not looked yet
        if answer.status_code in (404, 422) and any(self._is_changing(view, first) for view in views):
            return  # it was asked as it is declared, and is answered as it was; or a cursor is of what it was
        is_problem = answer.headers.get("content-type") == "application/problem+json"
        if not (is_problem and answer.status_code in FINE):
            names = ", ".join(view.name for view in views)
            self.note("an error that is no 429 or 503", f"{names}: {answer.status_code} {answer.text}")

    def _is_changing(self, view: View, first: ServedAnswer | None) -> bool:
        """Whether another version is answered than is declared, or was on the first page."""
        version = view.hash[:VERSION]
        return (
            view not in self._declared()
            or self._served.get(view.name, version) != version
            or (first is not None and first.view.hash != view.hash)
        )

    def _version(self, view: View, version: str) -> View | None:
        """The view as it was when this version of it was declared."""
        if version not in self._views:
            with suppress(DeclarationError):  # it is just being changed
                self._installation.declare()
            self._views |= {each.hash[:VERSION]: each for each in self._installation.declared.views.values()}
        return self._views.get(version)

    def remember(self, view: View) -> None:
        """A version that may be served, also after another is declared."""
        self._views[view.hash[:VERSION]] = view

    # ---- judging ----

    def _follow(self, answered: ServedAnswer) -> None:
        """Cuts never go back, as long as one process answers and does not say that it is degraded."""
        is_degraded, cut = bool(answered.meta["degraded"]), answered.cut
        pid = self._pid()
        if pid != self._serving_pid:  # a new process does not know what the one before answered
            self._highest.clear()
            self._serving_pid = pid
        highest = self._highest.get(answered.view.source.name, {})
        if not is_degraded:
            if not is_below(highest, cut) and self._is_same_process(pid):
                at = round(time.monotonic() - self._began, 1)
                self.regressions.append(f"{at} s: {answered.view.name} at {cut} after {highest}")
            self._highest[answered.view.source.name] = cut
        self.seen = LatestAnswer(cut, is_degraded, answered.at, str(answered.meta.get("why") or ""))
        self.by_view[answered.view.name] = self.seen
        if self.seen.is_quarantined:
            name, reason = answered.view.name, self.seen.reason
            self.quarantined.setdefault((name, reason), f"{self.now():.0f} s: {name}: {reason[:300]}")
        for row in answered.body["rows"][:1]:
            texts = {key: _text(row[key]) for key in answered.view.keys if key in row}
            self._known.setdefault(answered.view.name, {}).update({key: text for key, text in texts.items() if text})

    def _is_same_process(self, pid: int | None) -> bool:
        """Whether no other process may have answered: the supervisor needs a moment to notice."""
        time.sleep(1.5)
        return pid is not None and self._pid() == pid

    def _pid(self) -> int | None:
        try:
            return self._installation.processes.pid("serving")
        except TortureError:
            return None

    def _judge(self) -> None:
        """Every answer whose cut was read back from Kafka by now."""
        for _ in range(len(self._waiting)):
            answered = self._waiting.popleft()
            if not self._truth.has(answered.cut):
                self._waiting.append(answered)
                continue
            compared = compare(answered, self._truth)
            self.answers += 1
            self.comparisons += compared.values
            self.degraded += bool(answered.meta["degraded"])
            if compared.differences:
                self.note("a wrong answer", _description(answered, compared.differences))


def _text(value: Any) -> str:
    """A value of a key as a filter has it; empty: it is none that is asked for here."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) and len(value) < MAX_VALUE_LENGTH else ""


def _description(answered: ServedAnswer, differences: tuple[str, ...]) -> str:
    meta: dict[str, Any] = answered.meta
    shown = {name: meta.get(name) for name in ("cut", "batch", "speed", "degraded", "why")}
    return f"{answered.view.name} {answered.query}: {'; '.join(differences)} | {json.dumps(shown)}"
