"""Compatibility levels and modes, of subjects and of all."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from infra.rest.problems import Problem
from master_dataset.collector.schema_registry.context import Serving
from master_dataset.collector.schema_registry.requests import (
    Parameters,
    names,
    read_object,
    subject_of,
)
from master_dataset.collector.schema_registry.route import PREFIX, RegistryRoute, reply
from master_dataset.registry import rules
from master_dataset.registry.errors import RegistryError, shown
from master_dataset.registry.state import DEFAULT_LEVEL, DEFAULT_MODE


def rule_routes(serving: Serving) -> APIRouter:
    """`/config` and `/mode`."""
    routes = APIRouter(tags=["schema registry"], route_class=RegistryRoute)

    def allowed_subject(request: Request, *, writing: bool = False) -> str | None:
        """The subject in the path, None for all; the key is checked before."""
        allowed = serving.allow_writing(request) if writing else serving.allow_reading(request)
        subject = subject_of(request, 1) if len(names(request)) > 1 else None
        if subject is not None:
            allowed.check_subject(subject)
        elif writing:
            allowed.check_all_subjects()
        return subject

    @routes.get(f"{PREFIX}/config")
    async def read_global_level(request: Request) -> Response:
        """The compatibility level of all subjects that have none of their own."""
        allowed_subject(request)
        return reply(request, {"compatibilityLevel": serving.registry.state.levels.get(None, DEFAULT_LEVEL)})

    @routes.get(f"{PREFIX}/config/{{subject}}")
    async def read_level(request: Request) -> Response:
        """The compatibility level of a subject; with `defaultToGlobal` the one that counts for it."""
        subject, state = allowed_subject(request) or "", serving.registry.state
        level = state.levels.get(subject)
        if level is None:
            if not Parameters(request).flag("defaulttoglobal"):
                raise rules.no_level(subject)
            level = state.level(subject)
        return reply(request, {"compatibilityLevel": level})

    async def write_level(request: Request) -> Response:
        subject = allowed_subject(request, writing=True)
        given = await read_object(serving.collector, request)
        _refuse_others(given, "compatibility")
        decide = partial(rules.set_level, subject=subject, level=given.get("compatibility"))
        return reply(request, {"compatibility": await serving.registry.change(decide)})

    @routes.put(f"{PREFIX}/config")
    async def write_global_level(request: Request) -> Response:
        """Set the compatibility level of all subjects that have none of their own."""
        return await write_level(request)

    @routes.put(f"{PREFIX}/config/{{subject}}")
    async def write_level_of_subject(request: Request) -> Response:
        """Set the compatibility level of a subject."""
        return await write_level(request)

    async def clear_level(request: Request) -> Response:
        subject = allowed_subject(request, writing=True)
        before = await serving.registry.change(partial(rules.clear_level, subject=subject))
        return reply(request, {"compatibilityLevel": before})

    @routes.delete(f"{PREFIX}/config")
    async def clear_global_level(request: Request) -> Response:
        """Set the compatibility level of all back to BACKWARD."""
        return await clear_level(request)

    @routes.delete(f"{PREFIX}/config/{{subject}}")
    async def clear_level_of_subject(request: Request) -> Response:
        """Take a subject's own level away."""
        return await clear_level(request)

    @routes.get(f"{PREFIX}/mode")
    async def read_global_mode(request: Request) -> Response:
        """The mode of all subjects that have none of their own."""
        allowed_subject(request)
        return reply(request, {"mode": serving.registry.state.modes.get(None, DEFAULT_MODE)})

    @routes.get(f"{PREFIX}/mode/{{subject}}")
    async def read_mode(request: Request) -> Response:
        """The mode of a subject; with `defaultToGlobal` the one that counts for it."""
        subject, state = allowed_subject(request) or "", serving.registry.state
        mode = state.modes.get(subject)
        if mode is None:
            if not Parameters(request).flag("defaulttoglobal"):
                raise rules.no_mode(subject)
            mode = state.mode(subject)
        return reply(request, {"mode": mode})

    async def write_mode(request: Request) -> Response:
        subject = allowed_subject(request, writing=True)
        given = await read_object(serving.collector, request)
        if rules.is_import(given.get("mode")):  # its ids count for all subjects
            serving.allow_writing(request).check_all_subjects()
        force = Parameters(request).flag("force")
        decide = partial(rules.set_mode, subject=subject, mode=given.get("mode"), force=force)
        return reply(request, {"mode": await serving.registry.change(decide)})

    @routes.put(f"{PREFIX}/mode")
    async def write_global_mode(request: Request) -> Response:
        """Set the mode of all subjects that have none of their own."""
        return await write_mode(request)

    @routes.put(f"{PREFIX}/mode/{{subject}}")
    async def write_mode_of_subject(request: Request) -> Response:
        """Set the mode of a subject."""
        return await write_mode(request)

    async def clear_mode(request: Request) -> Response:
        subject = allowed_subject(request, writing=True)
        return reply(request, {"mode": await serving.registry.change(partial(rules.clear_mode, subject=subject))})

    @routes.delete(f"{PREFIX}/mode")
    async def clear_global_mode(request: Request) -> Response:
        """Set the mode of all back to READWRITE."""
        return await clear_mode(request)

    @routes.delete(f"{PREFIX}/mode/{{subject}}")
    async def clear_mode_of_subject(request: Request) -> Response:
        """Take a subject's own mode away."""
        return await clear_mode(request)

    return routes


def other_routes(serving: Serving) -> APIRouter:
    """Whatever else clients of newer registries ask for: 404, which they take for "not there"."""
    routes = APIRouter(tags=["schema registry"], route_class=RegistryRoute, include_in_schema=False)

    @routes.api_route(f"{PREFIX}/{{rest:path}}", methods=["GET", "POST", "PUT", "DELETE"])
    async def not_there(request: Request) -> Response:
        serving.allow_reading(request)
        path = request.url.path
        raise Problem(404, "no-such-path", f"HTTP 404 Not Found: this registry has no {request.method} {path[:200]}.")

    return routes


def _refuse_others(given: dict[str, Any], known: str) -> None:
    """A setting that would be accepted and do nothing is worse than an error."""
    others = sorted(name for name, value in given.items() if value is not None and name != known)
    if others:
        raise RegistryError(422, f"This registry has no setting {shown(others[0])} of a subject; it has {known!r}.")
