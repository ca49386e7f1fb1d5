"""The pairs of schemas that Confluent's registry is tested with: the same verdict, or another one for a listed reason.

They are not in this repository. CONFLUENT_CHECKOUT names a checkout of github.com/confluentinc/schema-registry:

    CONFLUENT_CHECKOUT=FOLDER .venv/bin/python -m pytest -m soak tests/unit/test_confluent_pairs.py
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from views.schemas import JSON, PROTOBUF, NamedSchema, incompatibilities, parse

CHECKOUT = Path(os.environ.get("CONFLUENT_CHECKOUT", ""))
JSON_PAIRS, PROTOBUF_PAIRS = (f"{type}-provider/src/test/resources" for type in ("json-schema", "protobuf"))
NOTHING_REFUSED = "Compatible here: the reader refuses no value that the writer took."
REQUIRED = "Incompatible here: the writer took values without the property that is required now."
NOT_PROVEN = "Incompatible here: that it is compatible is not proven."
PAIRS = {
    f"{JSON_PAIRS}/diff-schema-examples.json": (
        104,
        {
            "Detect removed boolean additional items": NOTHING_REFUSED,
            "Detect changes to additional items schema": NOTHING_REFUSED,
            "Detect incompatible changes to dependencies schemas": NOTHING_REFUSED,
            "Detect required array to be changed": REQUIRED,
        },
    ),
    f"{JSON_PAIRS}/diff-schema-examples-2020-12.json": (
        113,
        {
            "Detect incompatible changes to dependencies schemas": NOTHING_REFUSED,
            "Detect required array to be changed": REQUIRED,
            "Detect property added to partially open content model 2, unevaluated": NOT_PROVEN,
        },
    ),
    f"{JSON_PAIRS}/diff-combined-schema-examples.json": (28, {}),
    f"{JSON_PAIRS}/diff-combined-schema-examples-2020-12.json": (18, {}),
    f"{PROTOBUF_PAIRS}/diff-schema-examples.json": (54, {}),
    f"{PROTOBUF_PAIRS}/diff-schema-examples-with-meta.json": (1, {}),
}
"""Of each file: how many pairs it has, and those whose verdict differs, with the reason."""
TRAILING_COMMA = re.compile(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])')


@pytest.mark.soak
@pytest.mark.process
@pytest.mark.skipif(not CHECKOUT.name, reason="CONFLUENT_CHECKOUT names no checkout of Confluent's registry")
@pytest.mark.parametrize("file", PAIRS, ids=lambda file: file.split("-provider")[0] + "-" + Path(file).stem)
def test_pairs_of_confluents_registry_get_its_verdict_or_differ_as_listed(file: str) -> None:
    count, listed = PAIRS[file]
    # Java's reader takes a comma before a closing bracket
    pairs = json.loads(TRAILING_COMMA.sub(lambda found: found[1] or "", (CHECKOUT / file).read_text()))
    differ = [pair["description"] for pair in pairs if is_compatible(pair, CHECKOUT / file) != pair["compatible"]]
    assert sorted(differ) == sorted(listed)
    assert len(pairs) == count


def is_compatible(pair: dict[str, Any], file: Path) -> bool:
    """Whether the updated schema reads what the original one wrote."""
    new, old = (
        parse(JSON, json.dumps(pair[name]))
        if isinstance(pair[name], dict)
        else parse(PROTOBUF, text(pair[name], file), references(pair.get(name.replace("schema", "dependencies"))))
        for name in ("update_schema", "original_schema")
    )
    return not incompatibilities(new, old)


def text(schema: str, file: Path) -> str:
    return (file.parent / schema).read_text() if schema.endswith(".proto") else schema


def references(dependencies: list[dict[str, str]] | None) -> list[NamedSchema]:
    """What the pair brings. It also names some files that are bundled here, and need no reference."""
    return [NamedSchema(each["name"], each["dependency"]) for each in dependencies or [] if "dependency" in each]
