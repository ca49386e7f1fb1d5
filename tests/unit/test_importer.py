"""Lines, ids, the journal and the loop of an import, without a broker."""

from __future__ import annotations

import gzip
import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from master_dataset.errors import InvalidEvent
from master_dataset.importer import line_ids, lines
from master_dataset.importer.detect import make_reader
from master_dataset.importer.errors import BrokerUnavailable, ImportFailed, ImportRunning, UnusableInput
from master_dataset.importer.formats import Options
from master_dataset.importer.import_loop import Import
from master_dataset.importer.inputs import find_input, open_input
from master_dataset.importer.journal import ImportJournal, Start, find_start
from master_dataset.importer.line_ids import LineIds
from master_dataset.importer.lines import MAX_LINE_BYTES, join_quoted, read_lines
from master_dataset.importer.ndjson import NdjsonReader
from master_dataset.importer.rejects import Rejects
from master_dataset.importer.tally import MAX_REASONS, OTHER, Tally
from views.catalog.web import web

# ---- lines -------------------------------------------------------------------


def raws(data: bytes) -> list[bytes]:
    return [line.raw for line in read_lines(io.BytesIO(data))]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\n", [b""]),
        (b"a\nb", [b"a", b"b"]),
        (b"a\r\nb\r\n", [b"a", b"b"]),
        (b"a\r", [b"a"]),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb", [b"a", b"\xef\xbb\xbfb"]),
        (b"a\0b\n", [b"a\0b"]),
    ],
)
def test_lines_are_cut_at_their_endings(data: bytes, expected: list[bytes]) -> None:
    assert raws(data) == expected


@given(data=st.lists(st.sampled_from([b"a", b"bb\r", b"\n", b"\n\n", b"x" * 7])).map(b"".join), chunk=st.integers(1, 9))
def test_chunks_do_not_change_the_lines(data: bytes, chunk: int) -> None:
    """Offsets tile the file: each line begins where the one before it ends."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "CHUNK_BYTES", chunk)
        found = list(read_lines(io.BytesIO(data)))
    assert [line.raw for line in found] == [part.removesuffix(b"\r") for part in data.split(b"\n")[: len(found)]]
    assert [line.number for line in found] == list(range(1, len(found) + 1))
    ends = [0, *(line.end_exclusive for line in found)]
    assert [line.start for line in found] == ends[:-1]
    assert ends[-1] == len(data)


@pytest.mark.parametrize("extra", [1, 5, lines.CHUNK_BYTES, 3 * lines.CHUNK_BYTES])
@pytest.mark.parametrize("ending", [b"", b"\n", b"\nb\nc"])
def test_long_line_is_cut_and_the_next_ones_are_whole(extra: int, ending: bytes) -> None:
    data = b"before\n" + b"x" * (MAX_LINE_BYTES + extra) + ending
    before, long, *after = read_lines(io.BytesIO(data))
    assert (before.raw, len(long.raw) > MAX_LINE_BYTES) == (b"before", True)
    assert len(long.raw) <= MAX_LINE_BYTES + lines.CHUNK_BYTES
    assert [line.raw for line in after] == ending.split()
    assert (after[-1] if after else long).end_exclusive == len(data)


def test_utf16_is_refused_with_the_fix() -> None:
    with pytest.raises(UnusableInput, match="iconv"):
        raws("a\n".encode("utf-16"))


def test_quoted_line_ends_join_csv_records() -> None:
    data = b'1,"two\nlines",3\n4,5\n6,"open\n7,8\n'
    found = list(join_quoted(read_lines(io.BytesIO(data))))
    assert [line.raw for line in found] == [b'1,"two\nlines",3', b"4,5", b'6,"open', b"7,8"]
    assert [line.number for line in found] == [1, 3, 4, 5]


def test_quote_that_is_never_closed_costs_one_line() -> None:
    data = b'1,"open\n' + b"2,b\n" * 300_000
    found = list(join_quoted(read_lines(io.BytesIO(data))))
    assert len(found) == 300_001
    assert found[0].raw == b'1,"open'


# ---- ids ---------------------------------------------------------------------

few_lines = st.lists(st.sampled_from([b"a", b"b", b"c", b"d", b"e", b"f"]))


def ids_of(some: list[bytes], remembered: int = line_ids.REMEMBERED_LINES, origin: str = "") -> list[str]:
    ids = LineIds(origin, remembered)
    return [ids.next_id(raw, number) for number, raw in enumerate(some, start=1)]


def test_equal_lines_are_different_events() -> None:
    one, two, three, other = ids_of([b"a", b"a", b"a", b"b"])
    assert [two, three] == [f"{one}-1", f"{one}-2"]
    assert other not in (one, two, three)


@given(few_lines)
def test_ids_depend_only_on_each_line_and_how_often_it_came(some: list[bytes]) -> None:
    """So a log whose beginning was cut, or that was sorted, keeps its ids."""
    assert Counter(ids_of(some)) == Counter(ids_of(sorted(some)))


@given(few_lines, st.integers(1, 3))
def test_no_two_lines_share_an_id_however_little_is_remembered(some: list[bytes], remembered: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_ids, "FORGOTTEN_BITS", 10)
        found = ids_of(some, remembered)
        assert len(set(found)) == len(some)
        assert found == ids_of(some, remembered)
        assert found[: len(some) // 2] == ids_of(some[: len(some) // 2], remembered)


def test_line_that_comes_again_after_it_was_forgotten_is_recognized_by_its_number() -> None:
    *_, again = ids_of([b"a", b"b", b"c", b"a"], remembered=1)
    assert again == ids_of([b"a"])[0] + "@4"


def test_origin_and_context_set_lines_apart() -> None:
    ids = LineIds()
    assert len({ids_of([b"a"])[0], ids_of([b"a"], origin="host2")[0], ids.next_id(b"a", 1, b"header")}) == 3


# ---- the loop and the journal ------------------------------------------------


class Broker:
    """Takes events in memory; may refuse to acknowledge after some of them."""

    def __init__(self, fails_after: int | None = None) -> None:
        self.taken: list[dict[str, Any]] = []
        self.is_abandoned = False
        self._fails_after = fails_after

    def send(self, _key: bytes, value: bytes) -> None:
        self.taken.append(json.loads(value))

    def settle(self) -> None:
        if self._fails_after is not None and len(self.taken) > self._fails_after:
            raise BrokerUnavailable("down")

    def abandon(self) -> None:
        self.is_abandoned = True


class Desk:
    """One home for imports of the source `web`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rejects = folder / "rejects"

    def start(self, path: Path, *, again: bool = False) -> tuple[ImportJournal, Start]:
        found, options = find_input(str(path)), Options()
        with open_input(found) as stream:
            format_ = make_reader(web, options, stream.peek(), found.name).format
        journal = ImportJournal(self.folder / "imports", found, web.name, format_, options)
        with journal.locked():
            return journal, find_start(journal.read(), found, again=again)

    def run(self, path: Path, broker: Broker | None = None, *, again: bool = False) -> tuple[Broker, Tally]:
        broker = broker or Broker()
        found, options = find_input(str(path)), Options()
        journal, start = self.start(path, again=again)
        with open_input(found) as stream, Rejects(self.rejects, go_on=start.entry is not None) as rejects:
            reader = make_reader(web, options, stream.peek(), found.name)
            work = Import(found, web, reader, stream, "", start, journal, broker, rejects, lambda _d, _t: None)  # type: ignore[arg-type]
            work.run()
        return broker, work.tally


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def ndjson(count: int, first: int = 0) -> bytes:
    return b"".join(b'{"name": "n%d"}\n' % number for number in range(first, first + count))


def event_ids(broker: Broker) -> list[str]:
    return [event["event_id"] for event in broker.taken]


@pytest.mark.parametrize("data", [b"", b"\n\n", b"\xef\xbb\xbf"])
def test_empty_file_is_done_with_nothing(desk: Desk, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a").write_bytes(data)
    broker, tally = desk.run(tmp_path / "a")
    assert (broker.taken, tally) == ([], Tally())
    assert desk.start(tmp_path / "a")[1].is_done


def test_given_id_is_kept_and_a_missing_one_is_made(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b'{"event_id": "mine"}\n{"event_id": null}\n{"name": "x"}')
    broker, _ = desk.run(tmp_path / "a")
    assert event_ids(broker) == ["mine", *ids_of([b'{"event_id": null}', b'{"name": "x"}'])]


def test_refused_lines_are_counted_by_reason_and_kept_as_they_were(desk: Desk, tmp_path: Path) -> None:
    bad = [b'{"name": 1}', b"{\xff}", b"{\0}", b'{"name": 2}', b'{"name": "' + b"x" * MAX_LINE_BYTES + b'"}']
    (tmp_path / "a").write_bytes(b"\n".join([b'{"name": "fine"}', *bad]))
    broker, tally = desk.run(tmp_path / "a")
    assert (len(broker.taken), tally.lines, tally.sent, tally.refused) == (1, 6, 1, 5)
    assert {name: (reason.count, reason.first_line) for name, reason in tally.reasons.items()} == {
        "name: this should be a string": (2, 2),
        "a byte is not valid UTF-8 here": (1, 3),
        "the line contains a NUL byte": (1, 4),
        f"the line is longer than {MAX_LINE_BYTES} bytes": (1, 6),
    }
    kept = [line for line in desk.rejects.read_bytes().split(b"\n") if line and not line.startswith(b"#refused: ")]
    assert kept == [*bad[:4], bad[4][:1000]]


def test_digits_that_are_no_number_do_not_end_an_import(desk: Desk, tmp_path: Path) -> None:
    odd = [b'{"name":"1.2.3.4.5.6.7.8.9.10","x":1.50}', b'{"x":1e-99999999999999999999}', b'{"name":"last"}']
    (tmp_path / "a").write_bytes(b"\n".join(odd))
    broker, tally = desk.run(tmp_path / "a")
    assert [event["name"] for event in broker.taken] == ["1.2.3.4.5.6.7.8.9.10", "last"]
    assert (tally.lines, tally.refused) == (3, 1)


def test_a_reader_that_fails_costs_one_line(desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(_self: NdjsonReader, raw: bytes) -> dict[str, Any]:
        return {"name": str(int(raw))}  # ValueError, as a defect would raise it

    monkeypatch.setattr(NdjsonReader, "read", read)
    (tmp_path / "a").write_bytes(b'{"x"}\n12\n')
    broker, tally = desk.run(tmp_path / "a")
    assert ([event["name"] for event in broker.taken], tally.refused) == (["12"], 1)


def test_fixed_rejects_file_can_be_imported(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"name,properties.status\nfine,200\nbad,x\nbad,y\n")
    desk.run(tmp_path / "a.csv")
    fixed = tmp_path / "fixed.csv"
    fixed.write_bytes(desk.rejects.read_bytes().replace(b",x", b",1").replace(b",y", b",2"))
    broker, tally = desk.run(fixed)
    assert [event["properties"]["status"] for event in broker.taken] == [1, 2]
    assert tally.refused == 0


def test_reason_with_a_quote_does_not_swallow_the_refused_line(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / 'a".csv').write_bytes(b"name,properties\nbad,[7]\n")
    desk.run(tmp_path / 'a".csv')
    fixed = tmp_path / "fixed.csv"
    fixed.write_bytes(desk.rejects.read_bytes().replace(b"[7]\n", b"{}\n"))
    assert desk.run(fixed)[1].sent == 1


def test_reasons_are_bounded() -> None:
    tally = Tally()
    for number in range(1000):
        tally.refuse(InvalidEvent(f"field{number}", "wrong"), number)
    assert (len(tally.reasons), tally.reasons[OTHER].count) == (MAX_REASONS + 1, 1000 - MAX_REASONS)


def test_finished_import_is_done_until_asked_again(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(ndjson(3))
    first, _ = desk.run(path)
    assert desk.start(path)[1].is_done
    path.touch()
    assert desk.start(path)[1].is_done
    second, _ = desk.run(path, again=True)
    assert event_ids(first) == event_ids(second)


def test_copy_and_gzip_give_the_same_ids(desk: Desk, tmp_path: Path) -> None:
    data = ndjson(5) + ndjson(5)
    (tmp_path / "a").write_bytes(data)
    (tmp_path / "b").write_bytes(data.replace(b"\n", b"\r\n"))
    (tmp_path / "c.gz").write_bytes(gzip.compress(data[:20]) + gzip.compress(data[20:]))
    found = [event_ids(desk.run(tmp_path / name)[0]) for name in ("a", "b", "c.gz")]
    assert found[0] == found[1] == found[2]
    assert len(set(found[0])) == 10


def test_grown_file_goes_on_after_what_was_imported(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(ndjson(3))
    first, _ = desk.run(path)
    path.write_bytes(ndjson(3) + ndjson(4))
    second, tally = desk.run(path)
    assert len(second.taken) == 4
    assert len({*event_ids(first), *event_ids(second)}) == 7
    assert (tally.lines, tally.sent) == (7, 7)


def test_line_that_was_written_on_since_is_sent_whole(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(ndjson(1) + b'{"name": "ha')
    assert desk.run(path)[1].refused == 1
    path.write_bytes(ndjson(1) + b'{"name": "half"}\n')
    assert [event["name"] for event in desk.run(path)[0].taken] == ["half"]


def test_changed_file_begins_again(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(ndjson(3))
    desk.run(path)
    path.write_bytes(ndjson(3, first=1))
    broker, tally = desk.run(path)
    assert (len(broker.taken), tally.sent) == (3, 3)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_stopped_import_goes_on_and_loses_nothing(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    """The broker goes away in the middle. What the journal says is done was acknowledged; the rest is sent again."""
    monkeypatch.setattr("master_dataset.importer.import_loop.JOURNAL_EVERY_S", 0)
    path, data = tmp_path / f"a{suffix}", ndjson(1500) + ndjson(1500) + b"bad\n"
    path.write_bytes(gzip.compress(data) if suffix else data)
    failing = Broker(fails_after=2000)
    with pytest.raises(BrokerUnavailable):
        desk.run(path, failing)
    entry = desk.start(path)[1].entry
    assert entry is not None
    assert 0 < entry.tally.sent <= 2000
    assert failing.is_abandoned
    rest, tally = desk.run(path)
    acknowledged = event_ids(failing)[: entry.tally.sent]
    assert [*acknowledged, *event_ids(rest)] == event_ids(desk.run(path, again=True)[0])
    assert (tally.lines, tally.sent, tally.refused) == (3001, 3000, 1)


def test_damaged_gzip_says_so_and_keeps_what_came_before(desk: Desk, tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    data, broker = ndjson(60_000), Broker()
    path.write_bytes(gzip.compress(data)[:-20])
    with pytest.raises(ImportFailed, match="the gzip data are damaged"):
        desk.run(path, broker)
    path.write_bytes(gzip.compress(data))
    rest, tally = desk.run(path)
    assert len(broker.taken) > 30_000
    assert len(broker.taken) + len(rest.taken) == tally.sent == 60_000


def test_two_imports_of_one_file_do_not_run_at_once(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(ndjson(1))
    journal, _ = desk.start(tmp_path / "a")
    with journal.locked(), pytest.raises(ImportRunning), journal.locked():
        pass


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 99}', '{"version": 1}'])
def test_damaged_journal_means_from_the_beginning(desk: Desk, tmp_path: Path, content: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(ndjson(2))
    desk.run(path)
    next((tmp_path / "imports").glob("*.json")).write_text(content)
    assert desk.start(path)[1] == Start()


@pytest.mark.parametrize("name", ["missing", "."])
def test_input_that_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnusableInput):
        find_input(str(tmp_path / name))
