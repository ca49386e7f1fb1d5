"""A small client of a schema registry: the schema of an id or a GUID, with everything that it refers to."""

from __future__ import annotations

import json
import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from infra.settings import Settings
from master_dataset.errors import MasterDatasetError
from views.formats.framing import ID_BYTE, name_of
from views.formats.writer_schemas import WriterSchema
from views.schemas.model import MAX_REFERENCES

if TYPE_CHECKING:
    import httpx

ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
TIMEOUT_S = 10.0
MAX_REPLY_BYTES = 8 * 2**20
"""Of a schema, with those of its references: more is refused, also where references go round in a circle."""
NO_SUCH_SCHEMA = 40403


class RegistryAway(MasterDatasetError):
    """The registry did not answer, or not as one. Records wait until it does."""

    is_temporary = True


class SchemaRegistry:
    """The registry of the setting `schema_registry_url`."""

    def __init__(self, settings: Settings) -> None:
        self.url = settings.schema_registry_url.rstrip("/")
        password = settings.schema_registry_password
        self._login = (settings.schema_registry_username, password.get_secret_value() if password else "")

    def schema_of(self, frame: bytes) -> WriterSchema | None:
        """The schema that a frame names; None where the registry says that there is none."""
        is_id = frame[:1] == ID_BYTE
        path = f"/schemas/ids/{name_of(frame)}" if is_id else f"/schemas/guids/{uuid.UUID(bytes=frame[1:])}"
        with self._client() as client:
            found = self._get(client, path)
            return None if found is None else self._with_references(client, found, path)

    def version(self, subject: str, version: int) -> WriterSchema:
        """The schema of one version of a subject. RegistryAway where there is none."""
        with self._client() as client:
            return self._with_references(client, self._version(client, subject, version), f"{subject} {version}")

    def _version(self, client: httpx.Client, subject: str, version: int) -> dict[str, Any]:
        path = f"/subjects/{quote(subject, safe='')}/versions/{version}?deleted=true"
        found = self._get(client, path)
        if found is None:
            raise RegistryAway(f"The schema registry {self.url} has no version {version} of subject {subject!r}.")
        return found

    def _with_references(self, client: httpx.Client, found: dict[str, Any], asked: str) -> WriterSchema:
        """The schema with all it refers to, each after what it refers to itself."""
        references: dict[str, str] = {}
        count = 0

        def collect(schema: dict[str, Any]) -> None:
            nonlocal count
            for each in schema.get("references") or ():
                count += 1
                if count > MAX_REFERENCES:
                    raise RegistryAway(
                        f"The schema of {asked} in {self.url} has over {MAX_REFERENCES} references, or one to itself."
                    )
                name, subject, version = (each.get(part) for part in ("name", "subject", "version"))
                if not isinstance(name, str) or not isinstance(subject, str) or type(version) is not int:
                    raise self._not_a_registry(asked)
                if name not in references:
                    other = self._version(client, subject, version)
                    collect(other)
                    references[name] = other["schema"]

        try:
            collect(found)
        except (AttributeError, TypeError):
            raise self._not_a_registry(asked) from None
        return WriterSchema(str(found.get("schemaType") or "AVRO"), found["schema"], tuple(references.items()))

    def _client(self) -> httpx.Client:
        import httpx

        if not self.url:
            raise RegistryAway(
                "A record names the schema that wrote it, but schema_registry_url is not set, and registry_enabled is "
                "off. Set it to the address of your schema registry, for example http://127.0.0.1:8081."
            )
        login = self._login if self._login[0] else None
        return httpx.Client(base_url=self.url, auth=login, timeout=TIMEOUT_S, headers={"Accept": ACCEPT})

    def _get(self, client: httpx.Client, path: str) -> dict[str, Any] | None:
        """A JSON object with a schema; None for the one reply that says there is none."""
        import httpx

        try:
            with client.stream("GET", path) as reply:
                body = b""
                for part in reply.iter_bytes():
                    body += part
                    if len(body) > MAX_REPLY_BYTES:
                        raise RegistryAway(f"The schema registry {self.url} sent more than {MAX_REPLY_BYTES} bytes.")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise RegistryAway(
                f"The schema registry {self.url} did not answer ({type(error).__name__}: {error}). Records whose "
                "schema is not known yet wait for it."
            ) from None
        try:
            found: Any = json.loads(body)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            if reply.status_code == httpx.codes.OK and isinstance(found.get("schema"), str):
                return found
            if reply.status_code == httpx.codes.NOT_FOUND and found.get("error_code") in (NO_SUCH_SCHEMA, 40401, 40402):
                return None
        raise self._not_a_registry(path, reply.status_code, body)

    def _not_a_registry(self, asked: str, status: int = 200, body: bytes = b"") -> RegistryAway:
        said = body[:200].decode(errors="replace")
        return RegistryAway(
            f"The schema registry {self.url} answered {asked} with {status} {said!r}, which is no schema. Check "
            "schema_registry_url, schema_registry_username and schema_registry_password."
        )
