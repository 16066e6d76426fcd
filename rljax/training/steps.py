"""The step: rollout, score, advantage, update, as pure functions of (state, key).

``make_step`` knows interfaces and no algorithm by name. ``key`` is always the run's root key; what a step
draws is a function of it and of the state, so a step can be replayed from a checkpoint.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax

from rljax import environments, types
from rljax.training import plans, rollouts, sharding, states, updates


@dataclasses.dataclass(frozen=True)
class Step:
    """The compiled functions of a plan. ``fused`` and ``update`` consume the state they are given."""

    plan: plans.Plan
    begin: Callable[..., types.TrainState]  # (state before or None, key, policy's parameters or None)
    next_prompts: Callable[[types.TrainState, types.Key], tuple[types.Array, types.Array]]
    rollout: Callable[[types.TrainState, types.Key], types.Rollout]
    sample: Callable[..., types.Rollout]
    update: Callable[[types.TrainState, types.Rollout, types.Key], tuple[types.TrainState, dict[str, types.Array]]]
    fused: Callable[[types.TrainState, types.Key], tuple[types.TrainState, dict[str, types.Array]]] | None
    sharding: types.TrainState  # of each leaf of the state
    shape: types.TrainState  # abstract state, with its shardings: what a checkpoint is restored like


def make_step(
    plan: plans.Plan, *, before: types.TrainState | None = None, carry: bool = False, keep: bool = False
) -> Step:
    """Compile (lazily) the functions of a plan.

    ``before`` is the abstract state in which the phase before ends; None where the run starts.

    Raises:
      ValueError: rows do not divide over the mesh, or a parameter does not.
    """
    sharding.check_rows(plan.mesh, plan.rows, "batch.prompts * config.batch.samples")
    start = functools.partial(states.begin, plan, carry=carry, keep=keep)
    shape = jax.eval_shape(start, before, jax.random.key(0))
    layout = states.layout(plan, shape)
    device = not plan.task.host
    demonstrated = plan.algorithm.source.origin == "demonstrations"

    def sample(params, step, position, prompts, key):
        prompts = sharding.constrain(prompts, plan.mesh)
        if demonstrated:
            return rollouts.demonstrate(plan, step, position, prompts, key)
        rollout = rollouts.sample(plan, params, step, position, prompts, key)
        if plan.algorithm.source.demonstrated:
            rollout = rollouts.guided(plan, rollout, step, prompts, key)
        return judge(rollout)

    def judge(rollout: types.Rollout) -> types.Rollout:
        if rollout.action is None or rollout.index is None or not environments.scored_on_device(plan.task):
            return rollout
        verdict = plan.task.verify(rollout.index, "train", rollout.action.token, rollout.mask)
        return rollouts.judged(rollout, verdict)

    def rollout(state: types.TrainState, key: types.Key) -> types.Rollout:
        if plan.algorithm.source.segment:
            return judge(rollouts.resumed(plan, state, key))
        position, index = rollouts.next_prompts(plan, state.cursor, key)
        return sample(state.params["policy"], state.step, position, plan.task.prompts(index, "train"), key)

    def update(state: types.TrainState, rows: types.Rollout, key: types.Key):
        return updates.update(plan, state, rows, key)

    def fused(state: types.TrainState, key: types.Key):
        return update(state, rollout(state, key), key)

    out = (layout, sharding.replicated(plan.mesh))
    traced = device or not demonstrated  # a host task's demonstrations are read on the host
    return Step(
        plan=plan,
        begin=jax.jit(start, donate_argnames="policy", out_shardings=layout),
        next_prompts=jax.jit(lambda state, key: rollouts.next_prompts(plan, state.cursor, key)),
        rollout=jax.jit(rollout) if device else rollout,
        sample=jax.jit(sample) if traced else sample,
        update=jax.jit(update, donate_argnums=0, out_shardings=out),
        fused=jax.jit(fused, donate_argnums=0, out_shardings=out) if device else None,
        sharding=layout,
        shape=jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shape, layout),
    )
