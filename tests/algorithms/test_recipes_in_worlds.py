"""Recipes on worlds through the drivers: one real step of each use of it; verdicts that pay tokens."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import algorithms, environments, types
from rljax.algorithms import inputs, interpreter
from rljax.language import errors
from rljax.run import programs
from rljax.training import checks as phase_checks
from rljax.training import rows as rows_lib
from rljax.training.producers import play
from tests.algorithms import recipes
from tests.algorithms import test_recipes_run as recipes_run
from tests.support import tiny

# less optimization compiles faster: these programs run once
FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def ran(function, *arguments):
    """Compile a function of a step without optimization, and run it."""
    return function.lower(*arguments).compile(FAST)(*arguments)


def program(name):
    """Return the program of a recipe on the world that the table names for it, 2 problems of 2 episodes."""
    built = algorithms.example(name)
    c = tiny.config(built.spec, task=recipes.ON_WORLDS[name], mesh__data=1, batch__prompts=2, batch__samples=2)
    for module in inputs.untrained(built):  # such a head follows one that begins with random numbers
        followed = module.removesuffix("_target")
        c.module[followed] = rljax.module(trunk="policy", stop_trunk=True, weights="random")
        c.module[module] = rljax.module(trunk="policy", follows=followed)
    if name == "spa":  # its scores alone are paid, and a new head's are 0
        c.module.prm = rljax.module(trunk="policy", stop_trunk=True, weights="random")
    return programs.build(c, devices=jax.devices()[:1])  # not kept


def varied(r, needs):
    """Return the rows with payments and verdicts that differ, as those of an untrained policy do not."""
    number = np.random.default_rng(5)
    row, written = np.arange(r.mask.shape[0]), r.mask * r.valid[:, None]
    paid = number.random(r.mask.shape) * (r.token_reward is not None)
    return r.replace(
        token_reward=None if r.token_reward is None else jnp.asarray(paid * written, jnp.float32),
        reward=jnp.asarray(number.random(row.size) * r.valid, jnp.float32),
        outcome=jnp.asarray(r.episode % 2, jnp.int32),
        parts={name: jnp.asarray(number.integers(0, 4, row.size) / 4, jnp.float32) for name in r.parts},
        extra=r.extra | {name: jnp.asarray(number.random(r.mask.shape) > 0.3, jnp.float32) for name in needs.extra},
        finish=jnp.full_like(r.finish, int(types.Finish.STOP)),
    )


def check_ids(rows, needs):
    """Check that the ids that a recipe reads differ between rows or tokens."""
    several = {"turns": rows.turn, "agents": rows.agent, "domains": rows.domain}
    for need, ids in several.items():
        assert not getattr(needs, need) or np.unique(ids[rows.valid > 0]).size > 1, need
    assert not needs.episodes or np.unique(rows.episode).size < rows.episode.size


def one_step(name):
    """Update a tiny policy once by a recipe, on rows that it wrote in a world through the compiled driver."""
    built = program(name)
    (step,) = built.steps
    state = jax.tree.map(jnp.copy, step.begin.__wrapped__(None, built.key))  # leaves that are donated share no buffer
    rows, needs = jax.device_get(ran(step.rollout, state, built.key)), interpreter.needs(step.setup.algorithm)
    assert {*needs.parts} <= {*rows.parts} and {*needs.extra} <= {*rows.extra}
    assert not needs.token_reward or rows.token_reward is not None
    check_ids(rows, needs)
    before = jax.device_get(state.params)
    state, metrics = ran(step.update, state, varied(rows, needs), built.key)
    return before, jax.device_get(state), jax.device_get(metrics)


# An untrained player's first move is illegal, and an untrained proposer writes no problem: no other seat has a turn.
ALONE = ("absolute_zero", "mars")
# paid turns, episodes of agents, domains, chapters of several seats, a critic, one turn; what other steps show is not
# asked again, and a name of ``extra`` is only read
STEPPED = ("ui_s1", "vision_zero", "golongrl", "evolving_rl", "turn_ppo", "diffusion_ppo", "gui_g1", "vlm_r1", "r1_sgg")
STEPPED += ("msrl", "rrvf")
SHOWN = [recipes_run.built(name) for name in (*recipes_run.STEPS, *recipes_run.ELSEWHERE)]
SHOWN += [algorithms.example(name) for name in STEPPED]
STEPPED += (*recipes.covering([name for name in recipes.ON_WORLDS if name not in ALONE], SHOWN, but=("extra",)),)
OTHERS = [name for name in recipes.ON_WORLDS if name not in STEPPED]


@pytest.mark.full
@pytest.mark.parametrize("name", STEPPED)
def test_a_step_through_the_driver_of(name):
    before, state, metrics = one_step(name)
    assert state.skipped_total == 0
    assert all(np.all(np.isfinite(x)) for key, x in metrics.items() if key != "rows")
    for module, params in before.items():
        changed = jax.tree.map(lambda x, y: bool(np.any(x != y)), params, state.params[module])
        assert any(jax.tree.leaves(changed)), f"{module} was not trained"


@pytest.mark.full
@pytest.mark.parametrize("world", dict.fromkeys(recipes.ON_WORLDS[name] for name in OTHERS))
def test_the_other_recipes_run_on_abstract_rows_of_their_world_and_its_expert_writes_the_ids_that_they_read(world):
    """What they compute from such rows: ``test_recipes_on_worlds.test_a_gradient_of``."""
    built = {name: program(name) for name in OTHERS if recipes.ON_WORLDS[name] == world}
    (setup,) = next(iter(built.values())).setups
    blank = functools.partial(rows_lib.blank, setup)
    shown = jax.jit(lambda i, key: play.shown(setup.world, blank, i, i, key))
    rows = jax.device_get(ran(shown, jnp.arange(4) // 2, jax.random.key(0)))
    rows = rows.replace(domain=rows.index % getattr(setup.task, "domains", 1))  # a mixture plays its worlds in turn
    for name in built:
        check_ids(rows, interpreter.needs(algorithms.example(name)))


# --- verdicts ---


@dataclasses.dataclass(frozen=True)
class Paid:
    """Sums whose verifier pays every token 0.5 and tells the parity of the prompt as its domain."""

    task: object
    supplies = ("token_reward", "domains")

    def __getattr__(self, name):
        """Return what the task of sums has."""
        if name.startswith("__") or name == "task":
            raise AttributeError(name)
        return getattr(self.task, name)

    def bind(self, tokenizer):
        """Return a copy with the tokenizer."""
        return Paid(self.task.bind(tokenizer))

    def verify(self, index, split, token, mask):
        """Judge sums."""
        verdict = self.task.verify(index, split, token, mask)
        return verdict.replace(token_reward=jnp.full(mask.shape, 0.5), domain=jnp.asarray(index % 2, jnp.int32))


@environments.task
def paid():
    """Return the task, for configs."""
    return Paid(environments.lookup("arithmetic")(operands=2, digits=1, working=False))


def test_a_verdict_may_pay_tokens_and_tell_domains():
    verdict = types.Verdict(
        reward=jnp.ones(3), outcome=jnp.asarray([1, 4, 0]), token_reward=jnp.full((3, 2), 0.5), domain=jnp.arange(3)
    )
    blank = types.Rollout(jnp.asarray([[1.0, 0.0]] * 3), jnp.zeros(3), jnp.zeros(3, int), domain=jnp.zeros(3, int))
    judged = rows_lib.judged(blank, verdict)
    np.testing.assert_array_equal(judged.token_reward, [[0.5, 0], [0, 0], [0.5, 0]])  # the second one crashed
    np.testing.assert_array_equal(judged.domain, [0, 1, 2])
    plain = rows_lib.judged(blank, verdict.replace(token_reward=None, domain=None))
    assert plain.token_reward is None and not np.any(plain.domain)


def test_a_verdict_holds_what_its_task_supplies():
    class Unpaid(Paid):
        def verify(self, *arguments):
            return self.task.verify(*arguments)

    setup = tiny.program().setups[0]
    phase_checks.check(dataclasses.replace(setup, task=Paid(setup.task)))
    with pytest.raises(errors.CodeError, match=r"Verdict.token_reward is None: .* Task.supplies has 'token_reward'"):
        phase_checks.check(dataclasses.replace(setup, task=Unpaid(setup.task)))


@pytest.mark.full
@pytest.mark.parametrize("kind", ["replay(0.5)", "partial(segment=2, oversample=1)"])
def test_payments_of_a_device_task_reach_the_update_from_any_source(kind):
    program = tiny.program("reinforce()", task=f"{__name__}.paid()", seam__source=kind, batch__prompts=4)
    (step,) = program.steps
    state = step.begin(None, program.key)
    r = step.rollout(state, program.key)
    np.testing.assert_array_equal(r.token_reward, 0.5 * r.mask)
    np.testing.assert_array_equal(r.domain, r.index % 2)
    for _ in range(2):
        state, metrics = step.update(state, step.rollout(state, program.key), program.key)
    assert np.isfinite(metrics["loss"]) and metrics["skipped_in_row"] == 0
