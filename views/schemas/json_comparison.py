"""Whether one JSON schema takes every value of another: a proof, which for some schemas would take for ever.

Small schemas without references are compared where the question is asked. All others are compared in a process of
their own, which is ended at a deadline and has a limit of memory: the schemas may be anybody's, and a proof cannot be
interrupted.
"""

from __future__ import annotations

import re
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jsonschema_rs
from jsonschema_rs.canonical import CanonicalizationError, Containment, IncompatibleOperands

from views.schemas import json_text
from views.schemas.bounded_process import bounded
from views.schemas.json_alignment import aligned
from views.schemas.json_recursion import Recursion

BASE_URI = "json-schema:///"
"""What relative names are resolved against in a schema without `$id`."""

DRAFTS: Mapping[int, tuple[str, type[jsonschema_rs.Validator]]] = {
    4: ("draft 4", jsonschema_rs.Draft4Validator),
    6: ("draft 6", jsonschema_rs.Draft6Validator),
    7: ("draft 7", jsonschema_rs.Draft7Validator),
    19: ("draft 2019-09", jsonschema_rs.Draft201909Validator),
    20: ("draft 2020-12", jsonschema_rs.Draft202012Validator),
}

# A pattern gives up after this many steps; a value then counts as not matching.
PATTERNS = jsonschema_rs.FancyRegexOptions(backtrack_limit=100_000, size_limit=1_000_000, dfa_size_limit=2_000_000)

DEADLINE_S = 10
MAX_CPU_S = 12
"""For a process whose parent does not end it any more."""
MAX_MEMORY_BYTES = 2**31
OUT_OF_BOUNDS = (-signal.SIGXCPU, -signal.SIGABRT, -signal.SIGKILL, -signal.SIGSEGV, 70)
"""How it ends without more CPU time or memory: for memory the compiled part aborts, and Python exits with the last."""

MAX_EXAMPLE = 300
# What is proven in milliseconds: seven and more combinations were seen to take seconds.
SMALL_BYTES = 20_000
SMALL_COMBINATIONS = 6
_COMBINATION = re.compile(r'"(?:anyOf|oneOf|allOf|not|if|dependencies|dependentSchemas)"')
_REFERENCE = re.compile(r'"\$(?:ref|dynamicRef|recursiveRef)"')
"""Schemas with references are not small: definitions that use each other twice double what is compared each time."""


@dataclass(frozen=True)
class Document:
    """A JSON schema with the documents that it refers to, by their addresses."""

    content: Any
    draft: int
    resources: Sequence[tuple[str, Any]] = ()

    def registry(self) -> jsonschema_rs.Registry | None:
        """The documents that it refers to; nothing else is ever looked for."""
        return jsonschema_rs.Registry(self.resources, draft=self.draft) if self.resources else None


def compare(reader: Document, writer: Document) -> list[str]:
    """Why the reader is not proven to take every value of the writer; empty if it is."""
    texts = json_text.write([reader.content, writer.content, *reader.resources, *writer.resources])
    if _is_small(texts):
        return prove(reader, writer)
    question = json_text.write([asdict(reader), asdict(writer)])
    try:
        done = subprocess.run(
            bounded([sys.executable, "-P", "-c", "from views.schemas.json_comparison import main; main()"], MAX_CPU_S),
            input=question.encode(),
            capture_output=True,
            timeout=DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        done = None
    if done is None or done.returncode in OUT_OF_BOUNDS:
        return [
            f"#: whether the reader takes every value of the writer was not proven within {DEADLINE_S} s and "
            f"{MAX_MEMORY_BYTES >> 20} MiB. Use fewer combinations of schemas (anyOf, oneOf, allOf, not, if)."
        ]
    if done.returncode != 0:
        raise RuntimeError(f"the comparison of two JSON schemas failed: {done.stderr.decode(errors='replace')[-2000:]}")
    problems: list[str] = json_text.read(done.stdout.decode(), "The comparison")
    return problems


def _is_small(texts: str) -> bool:
    if len(texts) > SMALL_BYTES or _REFERENCE.search(texts):
        return False
    return len(_COMBINATION.findall(texts)) <= SMALL_COMBINATIONS


def prove(reader: Document, writer: Document) -> list[str]:
    """The same, here and now, however long it takes."""
    try:
        accepted = _canonical(reader)
        written = _canonical(writer) if writer.draft == reader.draft else _in_draft(writer, reader.draft)
        contained = _contained(accepted, written)
        if (
            contained == Containment.UNKNOWN
            and writer.draft == reader.draft
            and _is_contained_otherwise(reader, writer)
        ):
            return []
    except (jsonschema_rs.ValidationError, CanonicalizationError) as error:
        problem = first_line(error)
        if reader.draft != writer.draft:
            names = f"the reader is of {DRAFTS[reader.draft][0]} and the writer of {DRAFTS[writer.draft][0]}"
            return [f"#: {names}, and they could not be compared: {problem}"]
        return [f"#: the schemas could not be compared: {problem}"]
    if contained == Containment.YES:
        return []
    refused = _refused(accepted, written)
    if contained == Containment.NO:
        return [f"#: the writer may have written values that the reader refuses{refused}"]
    return [f"#: it cannot be proven that the reader takes every value that the writer may have written{refused}"]


def _contained(accepted: jsonschema_rs.CanonicalSchema, written: jsonschema_rs.CanonicalSchema) -> Containment:
    try:
        return accepted.covers(written)
    except IncompatibleOperands:  # of one draft they are: a schema refers to its own document
        return Containment.UNKNOWN


def _is_contained_otherwise(reader: Document, writer: Document) -> bool:
    """Whether it is proven by other means: by naming the properties that the other names, or part by part."""
    named = _contained(_canonical(reader, writer), _canonical(writer, reader))
    if named == Containment.YES or reader.resources or writer.resources:
        return named == Containment.YES

    def covers(reading: Any, written: Any) -> bool:
        documents = Document(reading, reader.draft), Document(written, reader.draft)
        return _contained(*map(_canonical, documents)) == Containment.YES

    return Recursion(reader.content, writer.content, reader.draft, covers).is_proven()


def without_dialect(content: Any) -> Any:
    """The content without `$schema`: the draft is given beside it, also for a dialect that is not known."""
    if isinstance(content, dict) and "$schema" in content:
        return {name: value for name, value in content.items() if name != "$schema"}
    return content


def first_line(error: Exception) -> str:
    """What an error says, without the context that it shows below."""
    return str(getattr(error, "message", "") or error).split("\n", 1)[0][:MAX_EXAMPLE].rstrip(".")


def _canonical(document: Document, beside: Document | None = None) -> jsonschema_rs.CanonicalSchema:
    def matches(pattern: str, name: str) -> bool:
        return DRAFTS[document.draft][1]({"pattern": pattern}, pattern_options=PATTERNS, offline=True).is_valid(name)

    content = document.content if beside is None else aligned(document.content, beside.content, matches)
    return jsonschema_rs.canonicalize(
        without_dialect(content),
        draft=document.draft,
        validate_formats=False,
        pattern_options=PATTERNS,
        registry=document.registry(),
        base_uri=BASE_URI,
        offline=True,
    )


def _in_draft(document: Document, draft: int) -> jsonschema_rs.CanonicalSchema:
    """A schema of another draft: first reduced by the rules of its own, so that the same words mean the same."""
    reduced = without_dialect(_canonical(document).to_json_schema())
    return jsonschema_rs.canonicalize(
        reduced, draft=draft, validate_formats=False, pattern_options=PATTERNS, offline=True
    )


def _refused(accepted: jsonschema_rs.CanonicalSchema, written: jsonschema_rs.CanonicalSchema) -> str:
    """The values that only the writer takes, as a schema; nothing if they cannot be put into one."""
    try:
        difference = without_dialect(written.subtract(accepted).to_json_schema())
    except (CanonicalizationError, jsonschema_rs.ValidationError):
        return ""
    text = json_text.write(difference)
    return f": {text}" if len(text) <= MAX_EXAMPLE else f": {text[:MAX_EXAMPLE]}…"


def main() -> None:
    """Answer the question on stdin."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    reader, writer = json_text.read(sys.stdin.buffer.read().decode(), "The question", deeper=4)
    try:
        problems = prove(_document(**reader), _document(**writer))
    except MemoryError:
        sys.exit(OUT_OF_BOUNDS[-1])
    sys.stdout.buffer.write(json_text.write(problems).encode())


def _document(content: Any, draft: int, resources: list[list[Any]]) -> Document:
    return Document(content, draft, [(address, referenced) for address, referenced in resources])
