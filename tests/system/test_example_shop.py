"""The commands of examples/shop/README.md, run as they stand there, print the numbers that the data file holds."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conftest import INTERPRETED, wait_until

ROOT = Path(__file__).parents[2]
SHOP = ROOT / "examples" / "shop"
README = (SHOP / "README.md").read_text(encoding="utf-8")
ENOUGH_S = 180
"""How long to wait for a stack on a busy machine."""


class Printed(NamedTuple):
    """What a command printed, and its exit code."""

    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:
        assert self.code == 0, self
        return json.loads(self.stdout)


class Shell:
    """Runs lines of the README in a folder of its own, which sees the examples; prints JSON instead of tables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {
            **os.environ, "PYTHONPATH": str(ROOT), "TIDEMARK_CLI_OUTPUT": "json",
            "TIDEMARK_SPARK_CONF": json.dumps(INTERPRETED),
        }  # fmt: skip
        (folder / "examples").symlink_to(ROOT / "examples")

    def run(self, line: str) -> Printed:
        words = shlex.split(line)
        if words[0] == "export":
            self.environment |= dict(word.split("=", 1) for word in words[1:])
            return Printed(0, "", "")
        assert words[0] == "tidemark", line
        done = subprocess.run(
            [sys.executable, "-m", "tidemark", *words[1:]],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=600, check=False,
        )  # fmt: skip
        return Printed(done.returncode, done.stdout, done.stderr)


def commands() -> list[str]:
    """Every line of the README's shell blocks, in order."""
    blocks = re.findall(r"^```sh\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines()]


def orders() -> list[dict[str, Any]]:
    """The orders of the data file, each id once."""
    lines = (SHOP / "data" / "orders.ndjson").read_text(encoding="utf-8").splitlines()
    return list(
        {order["order_id"]: order for order in (json.loads(line, parse_float=Decimal) for line in lines)}.values()
    )


def expected_sales() -> dict[str, dict[str, Any]]:
    by_product: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for order in orders():
        if order["payment"] == "accepted":
            by_product[order["product"]].append(order)
    return {
        product: {
            "orders": len(sold),
            "items": sum(order["quantity"] for order in sold),
            "revenue": f"{sum(order['amount'] for order in sold):.2f}",
            "largest": f"{max(order['amount'] for order in sold):.2f}",
        }
        for product, sold in by_product.items()
    }


def expected_customers() -> dict[str, dict[str, Any]]:
    customers: dict[str, set[str]] = defaultdict(set)
    count: Counter[str] = Counter()
    for order in orders():
        customers[order["country"]].add(order["customer"])
        count[order["country"]] += 1
    return {country: {"customers": len(customers[country]), "orders": count[country]} for country in customers}


def rows_by(key: str, printed: Printed, names: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    return {row[key]: {name: row[name] for name in names} for row in printed.json["rows"]}


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    shell.run("tidemark down")


def test_commands_of_the_readme_print_the_numbers_of_the_data_file(shell: Shell) -> None:
    left = iter(commands())

    def next_command(beginning: str) -> str:
        line = next(left)
        assert line.startswith(beginning), f"the README has {line!r} here; this test expects {beginning!r}"
        return line

    def until(line: str, expected: Any, found: Any) -> None:
        """Repeat the command, as a person would, until it prints what is expected."""
        wait_until(f"{line!r} to print {expected!r}", lambda: found(shell.run(line)) == expected, ENOUGH_S)

    shell.run(next_command("export "))
    checked = shell.run(next_command("tidemark views check")).json
    assert {row["view"]: row["broken"] for row in checked} == {"customers": [], "payments": [], "sales": []}
    assert shell.run(next_command("tidemark up")).code == 0

    imported = shell.run(next_command("tidemark import")).json
    assert "525" in json.dumps(imported)
    sales = expected_sales()
    names = ("orders", "items", "revenue", "largest")
    until(next_command("tidemark query sales"), sales, lambda printed: rows_by("product", printed, names))

    run = next_command("tidemark batch run")
    wait_until("a batch run, once the archiver has written the orders", lambda: shell.run(run).code == 0, ENOUGH_S)
    line = next_command("tidemark query customers")
    until(line, expected_customers(), lambda printed: rows_by("country", printed, ("customers", "orders")))
    assert shell.run(line).json["meta"]["batch"]["run"] == 1
    declined = Counter(
        (order["ordered_at"][:10], order["method"]) for order in orders() if order["payment"] == "declined"
    )
    rows = shell.run(next_command("tidemark query payments")).json["rows"]
    assert [row["declined"] for row in rows] == sorted(declined.values(), reverse=True)[:3]
    assert all(row["declined"] == declined[row["bucket"][:10], row["method"]] for row in rows)

    assert shell.run(next_command("tidemark import")).code == 0
    until(
        next_command("tidemark alerts show"),
        [({"method": "card"}, "firing")],
        lambda printed: [(episode["key"], episode["state"]) for episode in printed.json["episodes"]],
    )

    assert {row["result"] for row in shell.run(next_command("tidemark verify")).json} == {"equal"}
    assert shell.run(next_command("tidemark master fsck")).code == 0
    assert shell.run(next_command("tidemark down")).code == 0
    assert next(left, None) is None


def test_table_in_the_readme_has_the_numbers_of_the_data_file() -> None:
    cells = [[cell.strip() for cell in line.split("│")[2:-1]] for line in README.splitlines() if line.startswith("│")]
    shown = {
        product: {"orders": int(count), "items": int(items), "revenue": revenue, "largest": largest}
        for product, count, items, revenue, largest, _ in cells
    }
    assert shown == expected_sales()


def test_data_file_is_what_the_program_writes() -> None:
    written = subprocess.run(
        [sys.executable, "-c", "import make_orders; print('\\n'.join(make_orders.lines()))"],
        cwd=SHOP, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert written == (SHOP / "data" / "orders.ndjson").read_text(encoding="utf-8")
