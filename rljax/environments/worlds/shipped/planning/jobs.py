"""Job shop: put the operations of jobs on machines in an order that ends early, ``1:B3A2C5 2:A1C4B2``."""

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.environments import Split
from rljax.environments.worlds import rules, text
from rljax.environments.worlds.shipped.planning import plan
from rljax.language.settings import setting

Array = types.Array
Jobs = Annotated[int, types.Range(2, 6)]
_RULES = np.array([(eager, sign, what) for eager in (0, 1) for sign in (1, -1) for what in (0, 1)])
_LATE = 2**20  # above every priority


@dataclasses.dataclass(frozen=True)
class JobShop(plan.Planned):
    """Rules: a turn is the digit of a job, whose next operation starts as soon as job and machine are free.

    A prompt lists the operations of each job in their order, a machine and a duration: ``1:B3A2C5 2:A1C4B2``. Every job
    has one operation on every machine. The reply is the time when the operation ends. The digit of a job without
    operations left, or another text, is told ``?`` and starts nothing.

    After the last operation the makespan, the latest end, is compared with the least one of eight dispatching rules:
    shortest or longest operation, most or least work remaining, each among all jobs or among those whose operation can
    start first. The reward is least / makespan, at most 1, and a makespan that is no longer is correct. With 3 jobs and
    machines the least one is the optimum in four of five problems, and 1.5 % longer on average; a policy may beat it.
    An expert follows the best rule. Parts: ``makespan``, so far; ``malformed``, unreadable turns.
    """

    jobs: Jobs | tuple[Jobs, Jobs] = setting(3, "Jobs; (least, most): each number is a domain.")
    machines: Annotated[int, types.Range(2, 4)] = setting(3, "Machines, and operations of a job.")

    name = "jobs"
    knob = "jobs"
    parts = ("makespan", "malformed")
    turn_length = 1
    reply_length = 3

    @property
    def alphabet(self) -> str:
        """Digits, machines and marks."""
        return "0123456789" + "ABCD"[: self.machines] + ": ?"

    @property
    def prompt_length(self) -> int:
        """The number of each job, its machines and durations, and a separator."""
        return self.span[1] * (3 + 2 * self.machines)

    @property
    def max_turns(self) -> int:
        """An operation each, and the spare ones."""
        return self.span[1] * self.machines + self.spare

    def radices(self, size: int) -> Sequence[int]:
        """An order of the machines and durations for each job."""
        return [math.factorial(self.machines), *[9] * self.machines] * size

    def begin(self, index: Array, split: Split, key: types.Key) -> Any:
        """Return problem ``index``, and which rule is best."""
        values, size = self.problem(index, split)
        values = values.reshape(self.span[1], -1)
        orders = jnp.asarray([*itertools.permutations(range(self.machines))], jnp.int32)
        absent = jnp.arange(self.span[1]) >= size
        shop = {
            "machine": orders[values[:, 0]],  # [jobs, operations]
            "duration": values[:, 1:] + 1,
            "next": jnp.where(absent, self.machines, 0).astype(jnp.int32),  # operation of each job
            "ready": jnp.zeros(self.span[1], jnp.int32),  # when the last operation of a job ends
            "free": jnp.zeros(self.machines, jnp.int32),  # when a machine is free
        }

        def run(rule: Array) -> Array:
            def one(_: Any, shop: Any) -> Any:
                return self._started(shop, self._chosen(shop, rule))[0]

            return jnp.max(jax.lax.fori_loop(0, self.span[1] * self.machines, one, shop)["ready"])

        ends = jax.vmap(run)(jnp.asarray(_RULES))
        state = {"best": jnp.min(ends), "rule": jnp.argmin(ends).astype(jnp.int32), "size": size}
        return {**shop, **state, **rules.counters(self)}

    def prompt(self, state: Any, seat: Array) -> Array:
        """Write the jobs."""
        operations = jnp.stack([state["machine"] + ord("A"), state["duration"] + ord("0")], axis=2)
        parts = [rules.line(f" {j + 1}:"[j == 0 :], row.ravel()) for j, row in enumerate(operations)]
        return rules.line(*(jnp.where(j < state["size"], part, 0) for j, part in enumerate(parts)))

    def step(self, state: Any, seat: Array, text: Array, key: types.Key) -> tuple[Any, rules.Answer]:
        """Start an operation; after the last one, compare."""
        job = text[0] - ord("1")
        among = (job >= 0) & (job < self.span[1])
        job = jnp.clip(job, 0, self.span[1] - 1)
        readable = among & (state["next"][job] < self.machines)
        after, end = self._started(state, job)
        after = jax.tree.map(lambda new, old: jnp.where(readable, new, old), after, state)
        over = jnp.all(after["next"] == self.machines)
        after = rules.counted(after, malformed=~readable) | {"makespan": jnp.max(after["ready"])}
        return after, self.paid(after, rules.decimal(end, 3), readable, over, after["makespan"], after["best"])

    def expert(self, state: Any, seat: Array, key: types.Key) -> Array:
        """Write the job that the best rule chooses."""
        best = self._chosen(state, jnp.asarray(_RULES)[state["rule"]])
        return (plan.slipped(key, self.slip, best, state["next"] < self.machines) + ord("1"))[None]

    def _next(self, shop: Any) -> tuple[Array, Array, Array]:
        """Return machine, duration and start of each job's next operation, [jobs]; of its last one after the end."""
        place = jnp.arange(self.span[1]), jnp.minimum(shop["next"], self.machines - 1)
        machine = shop["machine"][place]
        return machine, shop["duration"][place], jnp.maximum(shop["ready"], shop["free"][machine])

    def _started(self, shop: Any, job: Array) -> tuple[Any, Array]:
        """Start the next operation of a job; nothing changes if it has none. Also return when it ends."""
        machine, duration, start = (x[job] for x in self._next(shop))
        left, end = shop["next"][job] < self.machines, start + duration
        ready = shop["ready"].at[job].set(jnp.where(left, end, shop["ready"][job]))
        free = shop["free"].at[machine].set(jnp.where(left, end, shop["free"][machine]))
        return {**shop, "ready": ready, "free": free, "next": shop["next"].at[job].add(left)}, end

    def _chosen(self, shop: Any, rule: Array) -> Array:
        """Return the job that a rule chooses: (whether the earliest start counts first, sign, work or duration)."""
        _, duration, start = self._next(shop)
        left = jnp.arange(self.machines)[None, :] >= shop["next"][:, None]
        work = jnp.sum(jnp.where(left, shop["duration"], 0), axis=1)
        priority = rule[1] * jnp.where(rule[2] == 1, work, duration) + rule[0] * start * 128
        return jnp.argmin(jnp.where(shop["next"] < self.machines, priority, _LATE)).astype(jnp.int32)


jobs = text.of(JobShop)
