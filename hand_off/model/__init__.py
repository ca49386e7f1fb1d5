"""The executable specification of the hand-off between batch and speed; HANDOFF.md describes it in prose.

The model explores, breadth first, every interleaving of two speed writers (each may be the other's zombie),
overlapping batch runs, takeover, overtake, retire, loss of Redis and any number of readers. Each `Model` method named
`lua_*` is ONE atomic Redis script. Everything between two scripts may be interrupted for ever: that models a crash or a
paused process.

    python -m hand_off.model                  explore all scenarios
    python -m hand_off.model --mutate NAME    break one rule; the model must catch it
    python -m hand_off.model --mutate all     break each rule in turn, one line for each
    python -m hand_off.model --full           without reduction (long)
    python -m hand_off.model --list           names and meaning of the mutations

All simplifications are conservative. The Kafka log is fixed; arrival is the free choice of where a micro-batch ends. A
state is the multiset of event payloads that it counted (the free commutative monoid), so equality with the oracle is
the strictest possible. Readers have no state: after each step the model checks the answer of a reader that holds ANY
durable manifest. The master cut M is a free choice wherever it matters. Tokens and generation ids are unique (UUIDs);
here they are integers renamed to a canonical form. In a trace writer0 is always the writer that owns the epoch, so the
two may swap names when one starts.
"""

from __future__ import annotations

from hand_off.model.exploration import InvariantBroken, Model
from hand_off.model.mutations import MUTATIONS
from hand_off.model.program import run_all
from hand_off.model.scenarios import SCENARIOS, Scenario

__all__ = ["MUTATIONS", "SCENARIOS", "InvariantBroken", "Model", "Scenario", "run_all"]
