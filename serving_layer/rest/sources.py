"""Sources by REST: their cuts, generations and runs. GET /sources and /sources/{name}."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import psutil
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from batch_layer.failures import read_failures
from batch_layer.lease import work
from hand_off import publish_log
from hand_off.batch_folder import BatchFolder
from hand_off.errors import BatchError
from hand_off.manifests import read_manifest
from hand_off.publish_log import Entry
from infra.home import Home, read_json
from infra.rest.responses import json_response
from infra.settings import Settings
from infra.times import iso_utc
from master_dataset.archiver.status import status_file
from master_dataset.cut import cut_to_json
from master_dataset.writer_schemas.noted import NotedSchemas
from serving_layer.declared_now import DeclaredNow
from serving_layer.engine import QueryEngine
from serving_layer.rest.context import Serving
from serving_layer.rest.source_schema import schema_of
from serving_layer.rest.source_versions import pending_version
from serving_layer.rest.views import freshness, served_or_none
from views.source import Source
from views.view import View

MAX_RUNS = 20
"""Runs that are listed, the newest first."""
MAX_CACHED = 1_000
MAX_WRITER_SCHEMAS = 200
"""Writer schemas that are listed, the newest first."""


def source_routes(serving: Serving) -> list[Route]:
    """The routes. A key sees the sources of its views, and in their runs only these views."""
    declared = DeclaredNow(serving.settings, serving.declarations)
    descriptions = SourceDescriptions(serving.settings, serving.engine, declared)

    async def sources(request: Request) -> Response:
        views = list(serving.access.views(request).values())
        return json_response(await serving.run(descriptions.summaries, views))

    async def source(request: Request) -> Response:
        name = request.path_params["name"]
        views = serving.access.views_of(request, name)
        return json_response(await serving.run(descriptions.details, name, views))

    return [Route("/sources", sources), Route("/sources/{name}", source)]


class SourceDescriptions:
    """Describes sources. Manifests never change, so each is read once."""

    def __init__(self, settings: Settings, engine: QueryEngine, declared: DeclaredNow) -> None:
        self._settings, self._engine, self._declared = settings, engine, declared
        self._cache: dict[tuple[str, int], dict[str, Any]] = {}

    def summaries(self, views: Iterable[View]) -> dict[str, Any]:
        """Summaries of all sources, and the processes of this home."""
        names = dict.fromkeys(view.source.name for view in views)
        return {"sources": [self._summary(name) for name in names], "services": services(self._settings)}

    def details(self, name: str, views: list[View]) -> dict[str, Any]:
        """One source: its freshness, its schema, its generations and its newest runs. `views`: at least one of it."""
        seen, folder, status = (
            {view.name for view in views},
            self._engine.folder(name),
            self._engine.speed_status(name),
        )
        kept = None if status is None else status.kept
        return {
            **self._summary(name),
            "views": sorted(seen),
            "schema": self._schema(views),
            "pinned": _pinned(folder),
            "failures": _failures(folder),
            "speed": None
            if status is None
            else {
                "is_written": status.is_written,
                "applied": None if status.kept.meta is None else cut_to_json(status.kept.meta.applied),
                "published_run": None if status.kept.meta is None else status.kept.meta.published,
            },
            "generations": []
            if kept is None
            else [
                {"id": each.gid, "run": each.run, "from": cut_to_json(each.start), "views": len(each.views)}
                for each in kept.generations
            ],
            "runs": self._runs(folder, seen),
        }

    def _schema(self, views: list[View]) -> dict[str, Any]:
        """What the records look like by the version that is served, and which version is to follow it."""
        source, shown = read_by(self._engine, views)
        return {
            **schema_of(source, shown),
            "pending": pending_version(self._settings, source, self._declared().sources.get(source.name)),
            "writer_schemas": NotedSchemas(self._settings, source).summary(MAX_WRITER_SCHEMAS),
        }

    def _summary(self, name: str) -> dict[str, Any]:
        busy = work(self._engine.folder(name))
        return {
            "name": name,
            "freshness": freshness(self._engine, name),
            "working": None if busy is None else {"doing": busy.doing, "since": iso_utc(busy.since)},
            "archiver": archived(self._settings, name),
        }

    def _runs(self, folder: BatchFolder, seen: set[str]) -> list[dict[str, Any]]:
        try:
            entries = [entry for entry in publish_log.read(folder) if entry.run]
        except BatchError:
            return []  # `freshness` says why
        return [self._run(folder, entry, seen) for entry in reversed(entries[-MAX_RUNS:])]

    def _run(self, folder: BatchFolder, entry: Entry, seen: set[str]) -> dict[str, Any]:
        key = (folder.source, entry.run)
        if key not in self._cache:
            if len(self._cache) >= MAX_CACHED:
                self._cache.clear()
            self._cache[key] = _run_summary(folder, entry)
        summary = self._cache[key]
        if summary["views"] is None:
            return summary
        views = [view for view in summary["views"] if view["name"] in seen]
        timeline = [phase for phase in summary["timeline"] if _view_of(phase["name"]) in {"", *seen}]
        return {**summary, "views": views, "timeline": timeline}


def read_by(engine: QueryEngine, views: Iterable[View]) -> tuple[Source, list[View]]:
    """A source by the version that is served, and those of these views of it that are of this version."""
    ordered = sorted(views, key=lambda view: view.name)
    served = {view.name: found for view in ordered if (found := served_or_none(engine, view)) is not None}
    source = next(iter(served.values()), ordered[0]).source
    shown = [served.get(view.name, view) for view in ordered]
    return source, [view for view in shown if view.source.version == source.version]


def _run_summary(folder: BatchFolder, entry: Entry) -> dict[str, Any]:
    """A summary of a run. Of a pruned run only the entry of the publish log is left."""
    run = {"run": entry.run, "cut": cut_to_json(entry.cut), "published": iso_utc(entry.at)}
    try:
        manifest = read_manifest(folder, entry.run)
    except BatchError:
        members = ("kind", "seconds", "events", "duplicates", "invalid", "rows", "bytes", "views", "timeline")
        return {**run, **dict.fromkeys(members)}
    views = [
        {
            "name": view.name,
            "kind": view.kind,
            "rows": view.rows,
            "bytes": sum(file.bytes for file in view.files),
            "seconds": round(view.seconds, 2),
        }
        for view in manifest.views
    ]
    return {
        **run,
        "kind": manifest.kind,
        "seconds": round(manifest.finished - manifest.started, 2),
        "events": manifest.events,
        "duplicates": manifest.duplicates,
        "invalid": manifest.invalid,
        "rows": manifest.rows,
        "bytes": sum(int(str(view["bytes"])) for view in views),
        "views": views,
        "timeline": [asdict(phase) for phase in manifest.timeline],
    }


def _view_of(phase: str) -> str:
    """`page_hits: index` -> page_hits; nothing for a phase of the whole run."""
    view, colon, _ = phase.partition(": ")
    return view if colon else ""


def _pinned(folder: BatchFolder) -> int | None:
    try:
        pinned = publish_log.pinned(folder)
    except BatchError:
        return None
    return None if pinned is None else pinned.run


def _failures(folder: BatchFolder) -> dict[str, Any] | None:
    """The runs that failed since the last one that succeeded. The reason is for whoever may read the log."""
    found = read_failures(folder)
    return None if found is None else {"count": found.count, "since": iso_utc(found.since), "at": iso_utc(found.at)}


def archived(settings: Settings, source: str) -> dict[str, Any] | None:
    """The status of the archiver for a source, where both run on one machine. It counts the dead letters."""
    try:
        status = (read_json(status_file(settings)) or {})["sources"][source]
        return {"rows": status["rows"], "dead_letters": status["invalid"], "refused": status["refused"] or None}
    except (KeyError, TypeError):
        return None


def services(settings: Settings) -> list[dict[str, Any]] | None:
    """The processes of this home and their states, as its supervisor says; None where there is none here."""
    status = read_json(Home(settings.home).status_file)
    try:
        if not psutil.pid_exists(status["pid"]):
            return None
        return [{name: each[name] for name in ("name", "state", "restarts")} for each in status["services"]]
    except (KeyError, TypeError):
        return None
