"""Traffic signals: two queues at a crossing, one of which has green, ``3:7``."""

import dataclasses
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.environments import Split
from rljax.environments.problems import numbering
from rljax.environments.worlds import rules, text
from rljax.environments.worlds.shipped.planning import plan
from rljax.language import settings
from rljax.language.settings import Share, setting

Array = types.Array
_RATES = 9  # tenths, from 1
_GREENS = 6  # the longest green of a fixed cycle


@dataclasses.dataclass(frozen=True)
class Signals:
    """Rules: a turn is the direction, ``a`` or ``b``, that has green in the next step; at first it is ``a``.

    In a step up to ``flow`` cars of the direction with green leave, none if the light has changed; then a car arrives
    in each direction with the probability of the prompt in tenths, ``3:7``. The reply is the two queues, ``2 5``. An
    unreadable turn is told ``?`` and leaves the light as it is.

    After the last step the total waiting, the sum of both queues over all steps, is compared with the least one of all
    fixed cycles with greens of 1 to 6 steps, for the same arrivals. The reward is least / waiting, at most 1, and
    waiting that is no longer is correct. An expert serves the longer queue, and changes when the other one is longer
    by ``margin``; it is not always correct. Arrivals are a function of index and split, and no pair of rates is in both
    splits. Parts: ``waiting``, so far; ``malformed``, unreadable turns.
    """

    steps: Annotated[int, types.Range(4, 48)] = setting(16, "Steps, and turns, of an episode.")
    flow: Annotated[int, types.Range(1, 4)] = setting(2, "Cars that leave in a step.")
    margin: Annotated[int, types.Range(1, 9)] = setting(2, "Excess of the other queue at which an expert changes.")
    slip: Share = setting(0.0, "Probability that a turn of a demonstration is a random direction.")
    heldout: Annotated[float, types.Range(0.02, 0.5)] = setting(0.1, "Fraction of the pairs of rates that is held out.")

    name = "signals"
    alphabet = "0123456789ab: ?"
    parts = ("waiting", "malformed")
    prompt_length = 3
    turn_length = 1
    reply_length = 5

    __post_init__ = settings.check

    @property
    def max_turns(self) -> int:
        """The steps."""
        return self.steps

    @property
    def _radices(self) -> list[int]:
        return [_RATES, _RATES, *[10] * (2 * self.steps)]

    def size(self, split: Split) -> int:
        """Return the number of problems of a split."""
        return numbering.size(self._radices, self.heldout, split, 2)

    def begin(self, index: Array, split: Split, key: types.Key) -> Any:
        """Return the rates, the arrivals [steps, 2], and the least waiting of fixed cycles."""
        values = numbering.values(self._radices, self.heldout, index[None], split, 2)[0]
        rates = values[:2] + 1
        arrivals = (values[2:].reshape(self.steps, 2) < rates[None]).astype(jnp.int32)
        first, *greens = np.meshgrid([0, 1], *[np.arange(1, _GREENS + 1)] * 2)
        phase = np.arange(self.steps)[:, None] % (greens[0] + greens[1]).ravel()  # [steps, cycles]
        lights = (phase >= greens[0].ravel()) ^ first.ravel()

        def one(carry: Any, at: Any) -> Any:
            (queues, before), (light, arrived) = carry, at
            queues = jax.vmap(self._passed, (0, 0, 0, None))(queues, before, light, arrived)
            return (queues, light), jnp.sum(queues, axis=1)

        begun = jnp.zeros((lights.shape[1], 2), jnp.int32), jnp.zeros(lights.shape[1], jnp.int32)
        _, waiting = jax.lax.scan(one, begun, (jnp.asarray(lights, jnp.int32), arrivals))
        state = {"rates": rates, "arrivals": arrivals, "best": jnp.min(jnp.sum(waiting, axis=0))}
        return {**state, "queues": begun[0][0], "light": jnp.int32(0), **rules.counters(self)}

    def prompt(self, state: Any, seat: Array) -> Array:
        """Write the rates."""
        return rules.line(state["rates"][0] + ord("0"), ":", state["rates"][1] + ord("0"))

    def step(self, state: Any, seat: Array, text: Array, key: types.Key) -> tuple[Any, rules.Answer]:
        """Let cars pass and arrive; after the last step, compare."""
        readable = (text[0] == ord("a")) | (text[0] == ord("b"))
        light = jnp.where(readable, text[0] - ord("a"), state["light"])
        queues = self._passed(state["queues"], state["light"], light, state["arrivals"][state["turn"]])
        after = rules.counted(state, waiting=jnp.sum(queues), malformed=~readable) | {"queues": queues, "light": light}
        over = after["turn"] == self.steps
        reply = rules.line(rules.decimal(queues[0], 2), " ", rules.decimal(queues[1], 2))
        return after, plan.paid(self, after, reply, readable, over, after["waiting"], state["best"])

    def expert(self, state: Any, seat: Array, key: types.Key) -> Array:
        """Keep the light, or change it if the other queue is longer by the margin."""
        light = state["light"]
        changes = state["queues"][1 - light] >= state["queues"][light] + self.margin
        best = jnp.where(changes, 1 - light, light)
        return (plan.slipped(key, self.slip, best, jnp.ones(2, bool)) + ord("a"))[None]

    def _passed(self, queues: Array, before: Array, light: Array, arrived: Array) -> Array:
        """Return the queues [2] after a step with a light that was ``before``."""
        green = (jnp.arange(2) == light) & (before == light)
        return jnp.maximum(queues - jnp.where(green, self.flow, 0), 0) + arrived


signals = text.of(Signals)
