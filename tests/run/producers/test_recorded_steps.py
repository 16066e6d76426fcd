"""Steps of control worlds in files: what is written, windows and their targets, runs, and what is refused."""

import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import types
from rljax.data import stored_steps
from rljax.environments import control as worlds
from rljax.environments.control.shipped import pendulum
from rljax.methods.advantage import state_action
from rljax.run import loop, programs
from rljax.run.data import record
from rljax.training import phases
from rljax.training.producers import stored
from tests.support import control, tiny

ONE = jax.devices()[:1]
V = np.array([0.3, -0.8, 1.7])  # of the states of ``tables``


def config(file, window=2, algorithm="sft()", task=None, **fields):
    given = {"task": task} if task else {}
    return control.config(algorithm=algorithm, seam__source=f"recorded({str(file)!r}, {window})", **given, **fields)


def built(*given, **fields):
    return programs.build(config(*given, **fields), devices=ONE)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Return a file of 41 random steps of ``tables``, whose episodes the table ends, or the horizon of 3 steps."""
    path = str(tmp_path_factory.mktemp("steps") / "random.npz")
    record.record(control.tables(), 41, path)
    return path


def edited(file, path, **changes):
    """Write a file with other arrays; None leaves one out."""
    arrays = dict(np.load(file)) | changes
    np.savez(path, **{k: x for k, x in arrays.items() if x is not None})
    return str(path)


def state(observations):
    return np.where(observations.any(-1), observations.argmax(-1), control.END)


# --- what is written ---------------------------------------------------------------------------------


def test_recorded_steps_are_those_of_the_world(file):
    x = dict(np.load(file))
    before, after, action = state(x["observations"]), state(x["next_observations"]), x["actions"]
    np.testing.assert_array_equal(after, control.NEXT[before, action])
    np.testing.assert_allclose(x["rewards"], control.PAID[before, action])
    np.testing.assert_array_equal(x["terminals"], after == control.END)
    time, number = [], 0
    for ended in x["terminals"] | x["timeouts"]:
        time.append(number)
        number = 0 if ended else number + 1
    cuts = (np.array(time) == control.HORIZON - 1) & ~x["terminals"]
    cuts[-1] |= ~x["terminals"][-1]
    np.testing.assert_array_equal(x["timeouts"], cuts)
    begins = np.array(time) == 0
    assert len(action) == 41 and {*action} == {0, 1} and begins.sum() > 5 and x["terminals"].any() and cuts.any()
    np.testing.assert_array_equal(before[begins], 0)
    np.testing.assert_array_equal(before[1:][~begins[1:]], after[:-1][~begins[1:]])
    np.testing.assert_allclose(x["infos/action_log_probs"], np.log(0.5), atol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["categorical", "squashed", "clipped", "denoiser"])
def test_actions_and_log_probs_of_a_policy_are_read_back(kind, tmp_path):
    """Actions that are clipped, or that a chain ends in, have no density that a row could hold."""
    path, task = tmp_path / "policy.npz", "cartpole(horizon=9)" if kind == "categorical" else "pendulum(horizon=9)"
    fields = {"model__mlp__squash": kind == "squashed", "model__denoising__steps": 2 * (kind == "denoiser")}
    setup = programs.build(control.config(task, "reinforce()", **fields), devices=ONE).setups[0]
    params = setup.networks["policy"].init(jax.random.key(3))
    out = record.record(setup.task, 90, path, setup.networks["policy"], params)
    known = kind in ("categorical", "squashed")
    assert ("infos/action_log_probs" in out) == known and np.abs(out["actions"]).max() <= 1
    step = built(path, 4, "reinforce()", task, batch__prompts=16, seam__ratio="token('behaviour')", **fields).steps[0]
    given = stored.Stored(step.setup, step.setup.stored)
    assert given.wants_behaviour != known
    if known:
        rows = given.of(np.arange(16), np.arange(16))
        logp = phases.score(step.setup, "policy", params, jax.tree.map(jnp.asarray, rows), types.Needs()).logp
        np.testing.assert_allclose(logp, rows.behaviour_logp, atol=2e-3)
        assert np.any(rows.mask == 0) and np.all((rows.behaviour_logp == 0)[rows.mask == 0])


@pytest.mark.full
def test_an_expert_is_recorded_without_log_probs(tmp_path):
    out = record.record(pendulum.pendulum(), 300, tmp_path / "a.npz", expert=True)
    assert stored_steps.LOGP not in out and out["timeouts"].sum() == 2 and not out["terminals"].any()
    assert out["rewards"][100:200].mean() > -0.5  # it holds the pole upright


# --- windows -----------------------------------------------------------------------------------------


@pytest.mark.full
def test_each_step_is_in_one_window_and_has_the_target_of_its_transition(file):
    """It is r + gamma V(s'), with 0 behind a terminal, and V behind a time limit or the end of a window."""
    x, q = dict(np.load(file)), state_action.q_returns(0.9)
    want = x["rewards"] + 0.9 * np.where(x["terminals"], 0.0, V[x["next_observations"].argmax(1)])
    setup = built(file).setups[0]
    for window in (1, 2, 5):
        steps = stored_steps.Reader("tables", 3, worlds.Discrete(2), window, legal=True).read(file)
        rows = stored.Stored(setup, steps).of(np.arange(len(steps)), np.arange(len(steps)))
        assert rows.mask.sum() == 41 and np.all(rows.mask[:, -1] == 0) and rows.mask.shape[1] == window + 1
        seen = np.asarray(rows.motion.observation)
        value = np.where(seen.any(-1), V[seen.argmax(-1)], 9.0)  # 9 of the end, which no target may contain
        out, _ = q.apply(jax.tree.map(jnp.asarray, rows.replace(value=value)), q.init(), jax.random.key(0))
        np.testing.assert_allclose(np.asarray(out.extra["q_returns"])[rows.mask > 0], want, atol=1e-5)
        np.testing.assert_array_equal(rows.motion.taken[rows.mask > 0], x["actions"])
        assert rows.motion.legal.shape == (*rows.mask.shape, 2) and rows.motion.legal.all()
        np.testing.assert_array_equal(rows.turn[rows.mask > 0] % window, np.nonzero(rows.mask)[1])


def test_without_the_states_that_follow_the_last_step_before_a_time_limit_is_left_out(file, tmp_path):
    x = dict(np.load(file))
    read = stored_steps.Reader("tables", 3, worlds.Discrete(2)).read(
        edited(file, tmp_path / "d4rl.npz", next_observations=None, world=None, timeouts=x["timeouts"])
    )
    kept = ~(x["timeouts"] & ~x["terminals"])
    for name in ("observations", "actions", "rewards", "terminals"):
        np.testing.assert_array_equal(read.arrays[name], x[name][kept])
    goes_on = ~x["terminals"][kept]
    np.testing.assert_array_equal(read.arrays["next_observations"][goes_on], x["next_observations"][kept][goes_on])
    before_cut = np.roll(x["timeouts"] & ~x["terminals"], -1)[kept]
    np.testing.assert_array_equal(read.arrays["timeouts"], before_cut | (np.arange(kept.sum()) == kept.sum() - 1))


def test_a_pattern_names_several_files_whose_episodes_do_not_join(file, tmp_path):
    for name in "ab":
        shutil.copy(file, tmp_path / f"{name}.npz")
    one, two = (stored_steps.Reader("tables", 3, worlds.Discrete(2), 5).read(x) for x in (file, f"{tmp_path}/*.npz"))
    assert len(two) == 2 * len(one)
    for name, x in one.at(np.arange(len(one))).items():
        if name == "legal":
            continue
        np.testing.assert_array_equal(two.at(np.arange(len(two)))[name], np.concatenate([x, x]))


# --- runs --------------------------------------------------------------------------------------------


@pytest.mark.full
def test_cloning_converges_to_the_frequencies_of_the_file(file):
    c = config(file, 1, batch__prompts=41, phase__main__steps=600, log__rollouts=0, model__mlp__activation="relu")
    c.phase.main.optimizer = "adam(learning_rate=linear_schedule(3e-2, 1e-3, 600))"
    out = loop.train(c, progress=False, devices=ONE)
    x = dict(np.load(file))
    z = control.network(jax.device_get(out.state.params["policy"]), np.eye(3), lambda z: np.maximum(z, 0))
    want = [x["actions"][x["observations"].argmax(1) == s].mean() for s in range(3)]
    np.testing.assert_allclose(1 / (1 + np.exp(z[:, 0] - z[:, 1])), want, atol=0.02)


@pytest.mark.full
@pytest.mark.parametrize("algorithm", ["iql()", "sac(share=0.0)", "ppo(kl=0.0)"])
def test_a_run_on_a_file_resumes_bit_for_bit(algorithm, file, tmp_path):
    """The last one reads log-probs of behaviour that the file does not have: the policy at the start computes them."""
    path = edited(file, tmp_path / "a.npz", **{stored_steps.LOGP: None})
    c = config(path, 2, algorithm, phase__main__steps=6, log__rollouts=2)
    for name in ("q", "q_2") if algorithm != "ppo(kl=0.0)" else ():
        c.module[name] = programs.schema.module(weights="random")
        c.module[f"{name}_target"] = programs.schema.module(follows=name, rate=0.5)
    whole = loop.train(c, str(tmp_path / "whole"), progress=False, devices=ONE)
    assert all(np.isfinite(record["loss"]) for record in whole.history) and whole.history[0]["gradient_norm"] > 0
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    for step in (4, 5, 6):
        shutil.rmtree(tmp_path / "cut" / "checkpoints" / str(step), ignore_errors=True)
    again = loop.train(c, str(tmp_path / "cut"), progress=False, devices=ONE)
    jax.tree.map(np.testing.assert_array_equal, *(jax.device_get(run.state) for run in (whole, again)))


# --- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rewards": None}, r"has no array 'rewards', expected observations, actions, rewards, terminals, legal"),
        ({"next_legal": np.ones((41, 3), bool)}, r"'next_legal' is bool \[41, 3\], and task 'tables' has bool \[41, 2"),
        (
            {"observations": np.zeros((41, 4))},
            r"'observations' is float64 \[41, 4\], and task 'tables' has float \[41, 3",
        ),
        ({"actions": np.zeros((41, 1))}, r"'actions' is float64 \[41, 1\], and task 'tables' has integers \[41\]"),
        ({"actions": np.full(41, 2)}, r"'actions' of step 0 is 2"),
        ({"rewards": np.where(np.arange(41) == 7, np.nan, 0)}, r"'rewards' of step 7 is nan"),
        ({"next_observations": np.full((41, 3), np.inf)}, r"'next_observations' of step 0 is \[inf, inf, inf\]"),
        ({"terminals": np.zeros(40, bool)}, r"'terminals' is bool \[40\], and task 'tables' has bool \[41\]"),
        ({"world": np.array("pendulum")}, r"steps of the world 'pendulum', and the task is 'tables'"),
        ({"infos/action_log_probs": np.full(41, -np.inf)}, r"'infos/action_log_probs' of step 0 is -inf"),
    ],
)
def test_arrays_of_another_world_are_refused_by_name(changes, message, file, tmp_path):
    path = edited(file, tmp_path / "bad.npz", **changes)
    with pytest.raises(ValueError, match=rf"phase 'main', recorded\(.*{re.escape(path)}: {message}"):
        built(path)


def test_damaged_files_and_other_kinds_of_rows_are_refused(file, tmp_path):
    content = (tmp_path / "cut.npz", tmp_path / "rows.jsonl", tmp_path / "far.npz")
    content[0].write_bytes(open(file, "rb").read()[:500])
    content[1].write_text('{"prompt": "1", "completion": "2", "reward": 1.0}\n')
    other = "another kind of rows"
    for given, message in (
        ((tmp_path / "cut.npz",), r"cut.npz: is damaged, or no .npz file"),
        ((tmp_path / "rows.jsonl",), rf"rows.jsonl: a store of {other}"),
        ((tmp_path / "none.npz",), r"none.npz: no such file"),
    ):
        with pytest.raises(ValueError, match=message):
            built(*given)
    continuous = stored_steps.Reader("tables", 3, worlds.Box(1))
    with pytest.raises(ValueError, match=r"'actions' reach 1.5, and those of a control world are in \[-1, 1\]"):
        continuous.read(edited(file, content[2], actions=np.full((41, 1), 1.5)))
    for c, message in (
        (control.config(seam__source=f"stored({file!r})"), rf"stored\(.* is a store of {other}: .*source.recorded"),
        (tiny.config(seam__source=f"recorded({file!r})"), rf"recorded\(.* is a store of {other}: .*use source.stored"),
        (tiny.config("dpo()", seam__source=f"stored({file!r}, 'pairs')"), rf"a store of {other}: .npz files are steps"),
    ):
        with pytest.raises(ValueError, match=message):
            programs.build(c, devices=ONE)


def test_what_cannot_be_recorded_is_refused(file, tmp_path):
    for given, message in (
        ((control.tables(), 1, file), r"random.npz: is there already"),
        ((control.tables(), 1, tmp_path / "a.jsonl"), r"a.jsonl: must end with .npz"),
        ((tiny.program().tasks[0], 1, tmp_path / "a.npz"), r"task 'arithmetic' is no control world"),
    ):
        with pytest.raises(ValueError, match=message):
            record.record(*given)
    with pytest.raises(ValueError, match=r"the rules of task 'tables' have no expert"):
        record.record(control.tables(), 1, tmp_path / "a.npz", expert=True)
    with pytest.raises(ValueError, match=r"no work directory of a run; --policy may be random or expert"):
        record.command("pendulum()", str(tmp_path / "a.npz"), 1, "run", None, changes=[])
