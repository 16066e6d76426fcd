"""Modules as players of a world's seats: what they write, and what each of them learns from."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import types
from rljax.config import resolve, schema
from rljax.run import programs
from rljax.training import phases, states
from rljax.training.producers import play
from tests.support import tiny

SUMS = "arithmetic(operands=2, digits=1, working=False, noise=0.3)"
PANEL = f"panel({SUMS}, shared=True)"
LEARN = ("second",)


def config(task=PANEL, algorithm="dr_mas()", second=None, **fields):
    """Return the config of a world whose seats are played by the policy and by another module."""
    given = {"world__players": ("policy", "second"), "world__swap": False, "world__trained": LEARN, "mesh__data": 1}
    c = tiny.config(algorithm, task=task, **{**given, **fields})
    if {"second", "third"} & {*c.world.players} or second:
        c.module = type(c)({"second": rljax.module(**(second or {}))})
    return c


def program(**fields):
    return programs.build(config(**fields), devices=jax.devices()[:1])


@functools.cache
def stepped(players=("policy", "second"), trained=LEARN, minibatches=2):
    """Return a program, its rows and its parameters after one step, from two policies in the order of the seats."""
    p = program(world__players=players, world__trained=trained, learner__minibatches=minibatches)
    (step,) = p.steps
    one, two = (step.begin(None, jax.random.key(seed), None).params["policy"] for seed in (0, 1))
    initial = dict(zip(players, (one, two), strict=True))
    state = step.begin(None, p.key, jax.tree.map(jnp.copy, initial))
    rows = step.rollout(state, p.key)  # random policies are paid nothing
    rows = rows.replace(reward=jax.random.normal(jax.random.key(2), rows.reward.shape))
    after, metrics = step.update(jax.tree.map(jnp.copy, state), rows, p.key)
    return p, state, rows, jax.device_get({**after.frozen, **after.params}), metrics


@pytest.mark.full
def test_players_that_change_names_learn_the_same():
    """Two modules with one recipe are symmetric: under swapped names each seat's parameters move as before."""
    _, state, rows, after, metrics = stepped()
    _, _, again, renamed, _ = stepped(("second", "policy"))
    np.testing.assert_array_equal(rows.action.token, again.action.token)
    np.testing.assert_array_equal(rows.behaviour_logp, again.behaviour_logp)
    for name, other in (("policy", "second"), ("second", "policy")):
        jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-6), after[name], renamed[other])
        moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), after[name], jax.device_get(state.params[name]))
        assert max(jax.tree.leaves(moved)) > 1e-4
    assert float(metrics["sampler_gap"]) < 1e-5 and float(metrics["second/gradient_norm"]) > 0


@pytest.mark.full
def test_a_second_player_learns_from_rows_that_were_sampled_ahead():
    c = config(world__players=("policy", "second"), run__lag=1, phase__main__steps=3)
    result = rljax.train(c, None, progress=False, devices=jax.devices()[:1])
    assert [record["age"] for record in result.history] == [0, 1, 1]


@pytest.mark.full
def test_a_player_learns_from_what_it_wrote_alone():
    p, state, rows, after, _ = stepped()
    np.testing.assert_array_equal(rows.extra["player"], rows.agent)
    scores = {name: phases.score(p.setups[0], name, state.params[name], rows, types.Needs()) for name in after}
    for number, name in enumerate(("policy", "second")):
        wrote = np.asarray(rows.mask > 0) & (np.asarray(rows.extra["player"]) == number)[:, None]
        np.testing.assert_allclose(scores[name].logp[wrote], rows.raw_logp[wrote], atol=1e-5)
        assert np.abs(np.asarray(scores[name].logp - rows.raw_logp)[~wrote & np.asarray(rows.mask > 0)]).max() > 1e-2
    (step,), others = p.steps, {"second": state.params["second"]}
    sampler = step.setup.settings.sampler
    seated = step.play(state.params["policy"], jnp.arange(8), p.key, "heldout", 4, sampler, others)
    logp = phases.score(p.setups[0], "second", others["second"], seated, types.Needs()).logp
    judged = np.asarray(seated.mask > 0) & (np.asarray(seated.agent) == 1)[:, None]
    np.testing.assert_allclose(logp[judged], seated.raw_logp[judged], atol=1e-5)
    assert {*play.fixed(p.setups[0], state, p.key)} == {"second"}
    _, _, alone, frozen, _ = stepped(trained=())  # statistics are of each agent, so the policy moves as before
    jax.tree.map(functools.partial(np.testing.assert_allclose, atol=2e-6), frozen["policy"], after["policy"])
    jax.tree.map(np.testing.assert_array_equal, frozen["second"], jax.device_get(state.params["second"]))
    assert not np.any(alone.mask[alone.agent == 1]) and np.any(alone.extra["written"][alone.agent == 1])


def shape(setup):
    """Return the state at the beginning of a phase, as shapes."""
    return jax.eval_shape(lambda k: states.begin(setup, states.Carried(), None, k), jax.random.key(0))


def test_a_rollout_reads_the_parameters_of_all_players():
    setup = program().setups[0]
    read = states.sampled(setup, shape(setup))
    assert {*read.params} == {"policy", "second"} and read.opt_state == ()
    assert setup.phase.trained == {"policy", "second"} and setup.writer("second") is setup.decoder
    frozen = program(world__trained=()).setups[0]
    read = states.sampled(frozen, shape(frozen))
    assert {*read.params} == {"policy"} and {*read.frozen} == {"second"}


@pytest.mark.full
def test_a_step_draws_its_opponent_from_a_pool_of_snapshots():
    p = program(
        task="game('kuhn_poker')", algorithm="spiral()", world__players=("policy", "snapshot"),
        world__swap=True, world__trained=(), world__snapshots=3, world__refresh=2,
    )  # fmt: skip
    (step,) = p.steps
    state, policies, opponents = step.begin(None, p.key, None), [], []
    assert len(state.snapshot) == 3
    for number in range(6):
        policies.append(jax.device_get(state.params["policy"]))
        players = play.players(p.setups[0], state, p.key)
        opponents += [i for i, x in enumerate(state.snapshot) if tiny.equal(x, players["snapshot"])][:1]
        rows = step.rollout(state, p.key)
        rows = rows.replace(reward=jax.random.normal(jax.random.key(number), rows.reward.shape))
        state, _ = step.update(state, rows, p.key)
    for held, number in zip(state.snapshot, (6, 4, 2), strict=True):  # newest first, each two steps older
        want = jax.device_get(state.params["policy"]) if number == 6 else policies[number]
        jax.tree.map(np.testing.assert_array_equal, held, want)
    assert len(opponents) == 6  # each played against one of the pool

    def drawn(number):
        snapshot = play.players(p.setups[0], state.replace(step=jnp.int32(number)), p.key)["snapshot"]
        return [tiny.equal(x, snapshot) for x in state.snapshot].index(True)

    assert {drawn(number) for number in range(40)} == {0, 1, 2}


def test_players_begin_with_the_phase_that_samples():
    c = config(phase__main__steps=2)
    c.phases = ("warm", "main")
    c.phase.warm = schema.phase(algorithm="sft()", steps=2)
    warm, main = resolve.run(c).phases
    assert warm.modules == ("policy",) and warm.trained == {"policy"} and warm.writers == ()
    assert main.modules == ("policy", "second") and main.trained == {"policy", "second"}
    other = resolve.run(resolve.played(c, SUMS)).phases[-1]  # as the command that evaluates on another task
    assert other.settings.world.players == ("policy",) and other.modules == ("policy",)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": SUMS, "algorithm": "grpo()"}, r"world.players=.*expected 'policy' alone, since one seat writes"),
        ({"world__players": ("second",)}, r"world.players=.*expected 'policy' among them"),
        ({"world__players": ("policy", "second", "policy")}, r"expected at most 2 in task 'panel', which has 2 seats"),
        ({"world__trained": ("other",)}, r"world.trained=.*'other' is not a module of config.world.players"),
        ({"world__trained": ("policy",)}, r"world.trained=.*'policy' is not a module"),
        ({"world__trained": ("second", "second")}, r"world.trained=.*expected each name once"),
        ({"algorithm": "remix()"}, r"world.trained=.*remix.* reads the policy one step earlier"),
        ({"second": {"prompt": "?"}}, r"module.second.prompt: task 'panel' has players who write rows"),
        ({"second": {"trunk": "policy"}}, r"reads log-probs of 'second', and a head is a number"),
        ({"world__players": ("policy", "third")}, r"'second' is not a module of .*'third'"),
        ({"world__players": ("policy", "third"), "world__trained": ()}, r"uses the module 'third', which no phase"),
    ],
)
def test_players_that_cannot_play(fields, message):
    with pytest.raises(ValueError, match=message):
        resolve.run(config(**fields))


def test_a_guide_reads_the_rows_as_they_are_and_is_in_the_config():
    c = tiny.config("vine_ppo()", seam__source="vine(2, 3, module='guide')")
    with pytest.raises(ValueError, match="uses the module 'guide', which no phase trains, and the config has no"):
        resolve.run(c)
    c.module.guide = rljax.module(prompt="?")
    with pytest.raises(ValueError, match=r"config\.module\.guide\.prompt: vine\(.* samples a second pass from it"):
        resolve.run(c)
