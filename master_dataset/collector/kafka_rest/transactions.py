"""The transactions that the collector keeps open for its clients: so many at most, each for so long at most."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

import structlog
from confluent_kafka import TopicPartition

from infra.rest.problems import Problem
from infra.threads import Threads
from master_dataset.collector.kafka_rest.transactional_producer import ENDED, State, TransactionalProducer
from master_dataset.collector.producer import Outcome, Refusal
from master_dataset.kafka.record import KafkaRecord

SWEEP_EVERY_S = 0.5
MAX_REMEMBERED = 10_000
"""Ended transactions whose outcome is known for a while, for clients that lost the reply."""
PREFIX = "tidemark-rest-"

log = structlog.get_logger()


@dataclass
class Transaction:
    """One transaction of a client. Its lock keeps two requests from using it at once."""

    id: str
    owner: str
    producer: TransactionalProducer
    deadline: float
    state: State = State.OPEN
    on_commit: list[Callable[[], None]] = field(default_factory=list)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Transactions:
    """All transactions by id. Of one name, a client has one at a time: the next one ends the one before."""

    def __init__(self, config: dict[str, Any], max_open: int, max_s: float, ack_timeout_s: float) -> None:
        self._config, self._limit, self._ack_timeout_s = config, max_open, ack_timeout_s
        self.max_s = max_s
        self._open: dict[str, Transaction] = {}
        self._ended: OrderedDict[str, tuple[str, State]] = OrderedDict()
        self._idle: OrderedDict[str, TransactionalProducer] = OrderedDict()
        self._beginning: set[str] = set()
        self._names: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._own = f"{PREFIX}{uuid.uuid4().hex}"
        self.threads = Threads("transact", max(1, max_open))

    async def begin(self, owner: str, name: str | None, timeout_s: float) -> Transaction:
        """Begin a transaction; with a name, an open one of the same owner and name is aborted first."""
        if name is None:
            return await self._begin(owner, self._free_id(), timeout_s)
        transactional_id = f"{PREFIX}{owner}:{name}"
        lock = self._names.get(transactional_id)
        if lock is None:  # it lives as long as somebody waits for it
            self._names[transactional_id] = lock = asyncio.Lock()
        async with lock:
            for other in list(self._open.values()):
                if other.producer.transactional_id == transactional_id:
                    await self._end(other, State.REPLACED)
            return await self._begin(owner, transactional_id, timeout_s)

    async def _begin(self, owner: str, transactional_id: str, timeout_s: float) -> Transaction:
        if len(self._open) + len(self._beginning) >= self._limit:
            raise Problem(
                429,
                "too-many-transactions",
                f"The collector keeps {self._limit} transactions open already (collector_max_transactions). Commit or "
                "abort one, or wait until one has timed out.",
                retry_after_s=1,
            )
        self._beginning.add(transactional_id)
        try:
            producer = self._idle.pop(transactional_id, None)
            while len(self._idle) + len(self._open) + len(self._beginning) > self._limit:
                self._idle.popitem(last=False)
            if producer is None:
                arguments = (self._config, transactional_id, self.max_s, self._ack_timeout_s)
                producer = await self.threads.run(TransactionalProducer, *arguments)
            await self.threads.run(producer.begin)
            begun = Transaction(uuid.uuid4().hex, owner, producer, time.monotonic() + timeout_s)
            self._open[begun.id] = begun
            return begun
        finally:
            self._beginning.discard(transactional_id)

    def _free_id(self) -> str:
        """The id of an idle producer of our own, or a new one: Kafka remembers each id for days."""
        used = {*self._beginning, *(each.producer.transactional_id for each in self._open.values())}
        idle = next((each for each in self._idle if each.startswith(self._own)), None)
        numbers = (f"{self._own}-{number}" for number in range(len(used) + 1))
        return idle or next(each for each in numbers if each not in used)

    def get(self, owner: str, transaction_id: str) -> Transaction:
        """An open transaction of this owner; the problem 409 says what became of one that has ended, 404 of no one."""
        found = self._open.get(transaction_id)
        if found is not None and found.owner == owner:
            return found
        state = self.state_of(owner, transaction_id)
        raise Problem(
            409,
            "transaction-ended",
            f"The transaction {transaction_id!r} is {state}. Begin another one with POST /transactions.",
            state=state,
        )

    def state_of(self, owner: str, transaction_id: str) -> State:
        """What became of a transaction, or the problem 404."""
        if (found := self._open.get(transaction_id)) is not None and found.owner == owner:
            return found.state
        ended_owner, state = self._ended.get(transaction_id, ("", State.ABORTED))
        if transaction_id in self._ended and ended_owner == owner:
            return state
        raise Problem(
            404,
            "unknown-transaction",
            f"There is no transaction {transaction_id[:100]!r}. POST /transactions begins one; after a restart of the "
            "collector those that were open are aborted.",
        )

    async def send(self, transaction: Transaction, records: list[KafkaRecord]) -> list[Outcome]:
        """Send records. If one is refused, the transaction can only be aborted."""
        async with transaction.lock:
            self._check_open(transaction)
            outcomes = await self.threads.run(transaction.producer.send, records)
            if any(isinstance(outcome, Refusal) for outcome in outcomes):
                transaction.state = State.FAILED
            return outcomes

    async def send_offsets(
        self,
        transaction: Transaction,
        locations: list[TopicPartition],
        metadata: Callable[[], Any],
        on_commit: Callable[[], None] | None = None,
    ) -> None:
        """Make offsets of a consumer group part of the transaction. `on_commit` is called once it is committed."""
        async with transaction.lock:
            self._check_open(transaction)
            await self._try(transaction, lambda: transaction.producer.send_offsets(locations, metadata()))
            if on_commit is not None:
                transaction.on_commit.append(on_commit)

    async def fail(self, transaction: Transaction) -> None:
        """Let an open transaction only be aborted."""
        async with transaction.lock:
            if transaction.state is State.OPEN:
                transaction.state = State.FAILED

    async def commit(self, transaction: Transaction) -> State:
        """Commit. After the problem 503 it is not known whether it is committed, and can only be committed again."""
        return await self._finish(transaction, State.COMMITTED)

    async def abort(self, transaction: Transaction, state: State = State.ABORTED) -> State:
        """Abort. One whose commit began is committed instead: Kafka may have done it already."""
        return await self._finish(transaction, state)

    async def _finish(self, transaction: Transaction, state: State) -> State:
        async with transaction.lock:
            if transaction.state in ENDED:
                return transaction.state
            if state is State.COMMITTED:
                self._check_open(transaction, State.COMMITTING)
                transaction.state = State.COMMITTING
            if transaction.state is State.COMMITTING:
                await self._try(transaction, transaction.producer.commit)
                for settle in transaction.on_commit:
                    settle()
                return self._close(transaction, State.COMMITTED)
            await self._try(transaction, transaction.producer.abort)
            return self._close(transaction, state)

    async def _end(self, transaction: Transaction, state: State) -> None:
        """Abort, whatever Kafka says: a producer that cannot be asked is dropped, and Kafka ends what it began."""
        try:
            await self.abort(transaction, state)
        except Exception as error:  # whatever it is: the others have to be ended too
            if transaction.id in self._open and transaction.state is not State.COMMITTING:
                transaction.producer.is_usable = False
                self._close(transaction, state)
            known = {"id": transaction.id, "state": transaction.state}
            if isinstance(error, Problem):
                log.warning("transaction_not_ended", error=error.detail, **known)
            else:
                log.exception("transaction_not_ended", error=repr(error), **known)

    async def _try(self, transaction: Transaction, call: Callable[[], None]) -> None:
        """Call the producer. What the transaction does not survive ends it, or lets it only be aborted."""
        try:
            await self.threads.run(call)
        except Problem as problem:
            if not transaction.producer.is_usable and transaction.state is State.COMMITTING:
                self._close(transaction, State.UNKNOWN)
                raise Problem(
                    503,
                    "outcome-unknown",
                    f"{problem.detail} Whether it was committed is not known: see what its topics hold.",
                ) from None
            if not transaction.producer.is_usable:
                self._close(transaction, State.ABORTED)
            elif problem.kind == "transaction-failed":
                transaction.state = State.FAILED
            raise

    def _check_open(self, transaction: Transaction, *others: State) -> None:
        """Raise the problem 409 unless it is open, or in one of the other states."""
        if transaction.state in (State.OPEN, *others):
            return
        detail = {
            State.FAILED: "has failed and can only be aborted",
            State.COMMITTING: "is being committed; send the commit again",
        }.get(transaction.state, f"is {transaction.state}")
        raise Problem(
            409, "transaction-ended", f"The transaction {transaction.id!r} {detail}.", state=transaction.state
        )

    def _close(self, transaction: Transaction, state: State) -> State:
        transaction.state = state
        self._open.pop(transaction.id, None)
        self._ended[transaction.id] = (transaction.owner, state)
        while len(self._ended) > MAX_REMEMBERED:
            self._ended.popitem(last=False)
        if transaction.producer.is_usable:
            self._idle[transaction.producer.transactional_id] = transaction.producer
        return state

    async def sweep(self) -> None:
        """Abort what has timed out, until it is cancelled."""
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            now = time.monotonic()
            late = [each for each in self._open.values() if now > each.deadline and not each.lock.locked()]
            for transaction in late:
                log.info("transaction_timed_out", id=transaction.id, state=transaction.state)
                await self._end(transaction, State.TIMED_OUT)

    async def close(self) -> None:
        """Abort everything that is open."""
        await asyncio.gather(*(self._end(each, State.ABORTED) for each in list(self._open.values())))
