"""`tidemark registry`: list, show, compare, check and register schemas, and ask again for one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from infra.errors import InfraError
from tidemark.commands.options import Output, OutputOption

app = typer.Typer(no_args_is_help=True)
TIMEOUT_S = 60.0
TYPES = {".avsc": "AVRO", ".proto": "PROTOBUF"}
"""By the ending of a file; what other files hold says their content, unless --type does."""
AVRO_ONLY = frozenset({"record", "error", "enum", "fixed", "map", "int", "long", "float", "double", "bytes"})
"""Types that an Avro schema may have, and no JSON schema."""
EITHER = frozenset({"array", "string", "boolean", "null"})

SubjectArgument = Annotated[str, typer.Argument(help="Name of the subject, such as web-value.")]
VersionArgument = Annotated[str, typer.Argument(help="Number of the version, or latest.")]
FileArgument = Annotated[Path, typer.Argument(help="File with the schema.", exists=True, dir_okay=False, readable=True)]
TypeOption = Annotated[
    str | None,
    typer.Option(
        "--type",
        envvar="TIDEMARK_CLI_TYPE",
        help="AVRO, JSON or PROTOBUF.",
        show_default="by the file's ending, .avsc or .proto, or by its content",
    ),
]
ReferenceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--reference",
        metavar="NAME=SUBJECT:VERSION",
        help="A schema that this one refers to by a name; the version is a number or latest. May be repeated.",
        show_default=False,
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url", envvar="TIDEMARK_CLI_URL", help="Address of the registry.", show_default="the collector of this home"
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key",
        envvar="TIDEMARK_CLI_KEY",
        help="An access key as name:secret. Use the variable: other users can see command lines.",
        show_default=False,
    ),
]


class RegistryRefused(InfraError):
    """The registry refused a request, or does not reply."""


@app.command("list")
def list_subjects(url: UrlOption = None, key: KeyOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the subjects with their latest version."""
    from infra import terminal

    rows = [
        {
            "subject": each["subject"],
            "version": each["version"],
            "id": each["id"],
            "type": each.get("schemaType", "AVRO"),
        }
        for each in _ask("GET", "/schemas?latestOnly=true", url, key)
    ]
    terminal.print_result(rows, output, "No schema is registered.", as_is=("version", "id"))


@app.command()
def show(
    subject: SubjectArgument,
    version: VersionArgument = "latest",
    url: UrlOption = None,
    key: KeyOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a version of a subject with the text of its schema."""
    from infra import terminal

    found = _version(subject, version, url, key)
    if output is Output.JSON:
        terminal.print_json(found)
        return
    typer.echo(f"{subject} version {found['version']}, id {found['id']}, {found.get('schemaType', 'AVRO')}")
    typer.echo(_lines(found))


@app.command()
def diff(
    subject: SubjectArgument,
    older: VersionArgument,
    newer: VersionArgument = "latest",
    url: UrlOption = None,
    key: KeyOption = None,
) -> None:
    """Show what differs between the texts of two versions of a subject."""
    from master_dataset.registry.texts import difference

    first, second = (_version(subject, version, url, key) for version in (older, newer))
    before, after = (f"{subject} version {each['version']}" for each in (first, second))
    for line in difference(_lines(first), _lines(second), (before, after)):
        typer.echo(line)


@app.command()
def check(
    subject: SubjectArgument,
    file: FileArgument,
    type: TypeOption = None,
    reference: ReferenceOption = None,
    url: UrlOption = None,
    key: KeyOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check whether a schema could be registered in a subject. Registers nothing; exit code 1 if it could not."""
    from infra import terminal

    path = f"/compatibility/subjects/{_quoted(subject)}/versions?verbose=true"
    found = _ask("POST", path, url, key, _body(file, type, reference, url, key))
    if output is Output.JSON:
        terminal.print_json(found)
    elif found["is_compatible"]:
        typer.echo(f"{file} can be registered in {subject}.")
    else:
        typer.echo("\n".join([f"{file} cannot be registered in {subject}:", *found.get("messages", [])]))
    raise typer.Exit(0 if found["is_compatible"] else 1)


@app.command()
def register(
    subject: SubjectArgument,
    file: FileArgument,
    type: TypeOption = None,
    reference: ReferenceOption = None,
    url: UrlOption = None,
    key: KeyOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Register a schema in a subject; prints the version and id, which it may have had already."""
    from infra import terminal

    found = _ask("POST", f"/subjects/{_quoted(subject)}/versions", url, key, _body(file, type, reference, url, key))
    if output is Output.JSON:
        terminal.print_json(found)
    else:
        typer.echo(f"{subject} version {found['version']}, id {found['id']}")


@app.command("ask-again")
def ask_again(
    source: Annotated[str, typer.Argument(help="Name of the source.")],
    schema: Annotated[str, typer.Argument(help="Id or GUID of the schema, as its dead letters name it.")],
    output: OutputOption = Output.TABLE,
) -> None:
    """Ask for a schema that the registry did not know; records that come from now on are read with it."""
    from infra import terminal
    from infra.logs import configure_logging
    from infra.settings import load_settings
    from master_dataset.cut import cut_to_json
    from master_dataset.writer_schemas import correction
    from views.declarations import declared_by

    configure_logging("WARNING")  # the result says what was noted
    settings = load_settings()
    found = correction.ask_again(settings, declared_by(settings).source(source), schema)
    if output is Output.JSON:
        terminal.print_json({"source": source, "schema": schema, "type": found.type, "since": cut_to_json(found.since)})
        return
    typer.echo(
        f"{found.type} schema {schema} is known. Records of {source} that come from now on are read with it. Dead "
        f"letters stay what they are: `tidemark dead list {source}` shows them, and `tidemark dead replay` sends them "
        "again."
    )


def latest_version(subject: str, url: str | None, key: str | None) -> dict[str, Any]:
    """The latest version of a subject, its text as people read it, with everything that the schema refers to."""
    from tidemark.commands.self_contained_schema import self_contained

    found = _version(subject, "latest", url, key)
    type = str(found.get("schemaType", "AVRO"))
    if found.get("references") and type == "AVRO":
        found = _version(subject, str(found.get("version")), url, key, "?format=resolved")
        return {**found, "schema": _lines(found)}
    referenced = _referenced(found, url, key)
    if not referenced:
        return {**found, "schema": _lines(found)}
    return {**found, "schema": self_contained(type, found["schema"], list(referenced.items()))}


def _referenced(version: dict[str, Any], url: str | None, key: str | None) -> dict[str, str]:
    """The texts of all schemas that a version refers to, by the names that it gives them, dependencies first."""
    found: dict[str, str] = {}
    for each in version.get("references") or ():
        if each["name"] not in found:
            other = _version(str(each["subject"]), str(each["version"]), url, key)
            found = {**_referenced(other, url, key), **found, each["name"]: other["schema"]}
    return found


def _version(subject: str, version: str, url: str | None, key: str | None, how: str = "") -> dict[str, Any]:
    found = _ask("GET", f"/subjects/{_quoted(subject)}/versions/{_quoted(version)}{how}", url, key)
    if not isinstance(found, dict) or not isinstance(found.get("schema"), str):
        raise RegistryRefused(f"The registry's reply has no schema: {str(found)[:200]}. Check --url.")
    return found


def _lines(version: dict[str, Any]) -> str:
    """The text of a schema as people read it."""
    from master_dataset.registry.texts import readable

    return readable(version.get("schemaType", "AVRO"), version["schema"])


def _body(
    file: Path, type: str | None, references: list[str] | None, url: str | None, key: str | None
) -> dict[str, Any]:
    """What the registry takes: the schema in a file with its type and what it refers to."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RegistryRefused(f"{str(file)!r} cannot be read as UTF-8 text: {error}.") from None
    found = type or TYPES.get(file.suffix) or type_of(text)
    if found is None:
        raise RegistryRefused(
            f"{str(file)!r} may be an Avro or a JSON schema, by its ending and its content. Say which: --type AVRO or "
            "--type JSON."
        )
    body: dict[str, Any] = {"schema": text, "schemaType": found.upper()}
    if references:
        body["references"] = [_reference(each, url, key) for each in references]
    return body


def type_of(text: str) -> str | None:
    """The type of a schema by its content; None where it may be Avro or JSON Schema.

    What is JSON and no Avro is JSON Schema; what does not even begin like JSON is Protobuf.
    """
    import json

    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None if text.lstrip("\ufeff \t\r\n")[:1] in ("{", "[", '"') else "PROTOBUF"
    if isinstance(content, list | str):
        return "AVRO"
    kind = content.get("type") if isinstance(content, dict) else None
    if isinstance(content, dict) and "$schema" not in content:
        if isinstance(kind, dict) or (isinstance(kind, str) and kind in AVRO_ONLY):
            return "AVRO"
        if isinstance(kind, str) and kind in EITHER:
            return None
    return "JSON"


def _reference(given: str, url: str | None, key: str | None) -> dict[str, Any]:
    """`address.proto=address-value:2`. A name may hold colons and equals signs, as addresses do."""
    rest, _, version = given.rpartition(":")
    name, _, subject = rest.rpartition("=")
    if not (name and subject and (version == "latest" or (version.isascii() and version.isdigit()))):
        raise typer.BadParameter(
            f"{given!r} should be NAME=SUBJECT:VERSION, such as address.proto=address-value:2.",
            param_hint="--reference",
        )
    number = _version(subject, version, url, key)["version"] if version == "latest" else int(version)
    return {"name": name, "subject": subject, "version": number}


def _quoted(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")


def _ask(method: str, path: str, url: str | None, key: str | None, body: object = None) -> Any:
    """The JSON that the registry answers."""
    import base64
    import http.client
    import json
    from urllib.parse import urlsplit

    address = url or _own_address()
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise typer.BadParameter(f"{address!r} should be an address like http://127.0.0.1:8080/schema-registry.")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.netloc, timeout=TIMEOUT_S)
    headers = {"Content-Type": "application/vnd.schemaregistry.v1+json"}
    if key:
        headers["Authorization"] = f"Basic {base64.b64encode(key.encode()).decode()}"
    try:
        content = None if body is None else json.dumps(body).encode()
        connection.request(method, parts.path.rstrip("/") + path, content, headers)
        response = connection.getresponse()
        answer = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise RegistryRefused(
            f"The registry at {address} does not reply ({error}). Is the collector running?"
        ) from None
    finally:
        connection.close()
    try:
        found = json.loads(answer)
    except ValueError:
        found = None
    if response.status != 200 or found is None:
        message = found.get("message") if isinstance(found, dict) else None
        raise RegistryRefused(str(message or f"{address} replied {response.status} {response.reason}."))
    return found


def _own_address() -> str:
    from infra.settings import load_settings
    from infra.stack.addresses import addresses

    return f"{addresses(load_settings()).collector}/schema-registry"
