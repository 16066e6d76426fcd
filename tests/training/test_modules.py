"""Modules beside the policy: their settings, their parameters in the state, reward models trained and read."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import types
from rljax.config import files, resolve
from rljax.run import programs
from rljax.run.evaluation import ranking
from rljax.transforms import ops, reward, trajectories
from tests.support import tiny
from tests.training.modules_cases import ONE, rows, with_modules

# --- settings -------------------------------------------------------------------------


BAD = [
    ({"judge": rljax.module()}, "config.module.judge: no phase trains or reads this module"),
    (
        {"reward": rljax.module(like="polcy")},
        r"config.module.reward.like='polcy': no such module. Did you mean 'policy'",
    ),
    (
        {"reward": rljax.module(like="judge"), "judge": rljax.module(like="reward")},
        "config.module.judge.like: a cycle, judge -> reward -> judge",
    ),
    ({"policy": rljax.module()}, "config.module.policy: the policy's network is config.model"),
    ({"reward": rljax.module(heads=3)}, "config.module.reward: width=32 must be divisible by heads=3"),
    ({"reward": rljax.module(weights="nowhere")}, "config.module.reward.weights='nowhere': .*no config.json"),
]


@pytest.mark.parametrize(("modules", "message"), BAD, ids=[next(iter(m)) + str(i) for i, (m, _) in enumerate(BAD)])
def test_settings_that_cannot_be(modules, message):
    with pytest.raises(ValueError, match=message):
        resolve.phases(resolve.complete(with_modules(**modules)))


def test_a_module_that_the_config_lacks_is_named():
    with pytest.raises(
        ValueError, match=r"uses the module 'judge', which no phase trains, and the config has no config.module.judge"
    ):
        resolve.phases(with_modules(seam="learned(module=('judge',))"))
    with pytest.raises(ValueError, match=r"module.widht: unknown field.*width"):
        rljax.module(widht=3)
    with pytest.raises(
        ValueError, match=r"learned: module=\('reward', 'reward'\) must be at least one name, each once"
    ):
        resolve.phases(with_modules(seam="learned(module=('reward', 'reward'))"))


def test_an_implicit_reward_from_another_reference_is_warned_of():
    def warned(*between, reference="start", after=""):
        c = tiny.config()
        c.phases = ("reward", *(f"p{n}" for n in range(len(between))), "main")
        c.phase.reward = rljax.phase(algorithm="implicit_bradley_terry()", steps=1)
        for number, algorithm in enumerate(between):
            c.phase[f"p{number}"] = rljax.phase(
                algorithm=algorithm, steps=1, reference=reference, seam={"after": after}
            )
        c.phase.main.update({"reference": reference, "seam": {"reward": "implicit()"}})
        return [line for line in resolve.phases(c)[-1].warnings if "its own reference" in line]

    assert resolve.phases(tiny.config("prime()"))[0].implicit == {"prm"}
    assert resolve.phases(tiny.config("flow_rl()"))[0].implicit == frozenset()  # which reads the reference alone
    assert not warned() and not warned("bradley_terry()")  # the policy has not moved
    (line,) = warned("grpo()")
    assert "phase 'main' measures 'prm' from its own reference, and phase 'reward' has trained it from another" in line
    assert "config.phase.main.reference='keep'" in line
    assert warned("rloo(kl=0.0)", reference="keep")  # which keeps none
    assert not warned("grpo()", reference="keep")
    assert warned("grpo()", reference="keep", after="ema_reference(0.99)")  # which moves it


def test_a_config_with_modules_is_stored_and_read_again():
    c = with_modules(reward=rljax.module(layers=2, weights="random"))
    again = files.from_dict(json.loads(files.dumps(c)))
    assert files.differences(c, again) == []
    files.override(again, "module.reward.layers", 3)
    assert again.module.reward.layers == 3
    with pytest.raises(ValueError, match=r"config.module.reward.layrs: unknown field"):
        files.override(again, "module.reward.layrs", 3)


def test_a_module_has_the_network_that_it_is_like():
    c = with_modules(
        "ppo(kl=0.0)", reward=rljax.module(like="value", layers=2), value=rljax.module(width=16, heads=4, kv_heads=2)
    )
    program = programs.build(c, devices=ONE)
    shapes = {name: program.model(name).architecture for name in ("policy", "value", "reward")}
    assert [(a.layers, a.width, a.heads, a.head_size, a.output) for a in shapes.values()] == [
        (1, 32, 2, 16, "logits"),
        (1, 16, 4, 4, "scalar"),
        (2, 16, 4, 4, "scalar"),
    ]
    assert {a.vocabulary for a in shapes.values()} == {program.tokenizer.vocabulary}
    assert [sorted(step.shape.params) for step in program.steps] == [["policy", "reward"], ["policy", "value"]]
    assert [sorted(step.shape.frozen) for step in program.steps] == [[], ["reward"]]


# --- the pieces -----------------------------------------------------------------------


def paid(piece, r):
    out = piece.apply(r, piece.init(), jax.random.key(0))[0]
    return np.asarray(out.reward), np.asarray(out.valid)


def test_scores_of_several_models_are_combined():
    a, b = np.array([0.5, -1.0, 2.0]), np.array([1.5, 1.0, 1.0])
    r = rows({"a": a, "b": b})
    both = ("a", "b")
    np.testing.assert_allclose(paid(reward.learned(both), r)[0], (a + b) / 2)
    np.testing.assert_allclose(paid(reward.learned(both, combine="worst"), r)[0], np.minimum(a, b))
    want = (a + b) / 2 - 0.3 * np.var([a, b], axis=0)
    np.testing.assert_allclose(
        paid(reward.learned(both, combine="uncertainty", coefficient=0.3), r)[0], want, rtol=1e-6
    )
    mixed = paid(reward.learned(("a",), scale=2.0, bias=1.0, verified=10.0), r)[0]
    np.testing.assert_allclose(mixed, [10 + 3, 0, 10 + 6])


def test_rows_with_a_score_outside_of_the_declared_range_are_invalid():
    reward_, valid = paid(reward.learned(("a",), low=0.0, high=1.0), rows({"a": [0.0, 1.5, np.nan]}))
    np.testing.assert_array_equal(valid, [1, 0, 0])
    np.testing.assert_array_equal(reward_, [0, 0, 0])


def test_an_implicit_reward_is_the_sum_of_log_ratios_over_the_trained_tokens():
    prm, ref = np.array([[-1.0, -2.0], [-0.5, -9.0], [-3.0, -1.0]]), np.array([[-2.0, -2.5], [-1.5, 0.0], [-1.0, -1.0]])
    held = {"prm": types.Scores(logp=jnp.asarray(prm))}
    r = types.Rollout(jnp.array([[1.0, 1], [1, 0], [1, 1]]), jnp.array([1.0, 0, 1]), jnp.zeros(3, int), scores=held)
    r = r.replace(ref_logp=jnp.asarray(ref), raw_logp=jnp.asarray(ref) + 0.25)
    want = 0.5 * np.array([1 + 0.5, 1, -2])
    np.testing.assert_allclose(paid(reward.implicit(beta=0.5), r)[0], want, rtol=1e-6)
    np.testing.assert_allclose(paid(reward.implicit(beta=0.5, verified=2.0), r)[0], np.add(want, [2, 0, 2]), rtol=1e-6)
    # a charge of the KL stays beside it, before and after; the sum over tokens is 2, 1 and 2 times 0.25
    for pieces in (
        (reward.kl("k1", 2.0), reward.implicit(beta=0.5)),
        (reward.implicit(beta=0.5), reward.kl("k1", 2.0)),
    ):
        out = r
        for piece in pieces:
            out = piece.apply(out, piece.init(), jax.random.key(0))[0]
        np.testing.assert_allclose(trajectories.total(out), want - 0.5 * np.array([2, 1, 2]), rtol=1e-6)
    piece, held = reward.implicit(beta=0.5), {"prm": types.Scores(logp=jnp.asarray(prm).at[2, 0].set(-jnp.inf))}
    out = piece.apply(r.replace(scores=held), piece.init(), jax.random.key(0))[0]
    np.testing.assert_array_equal(out.valid, [1, 1, 0])
    np.testing.assert_allclose(out.reward, [*want[:2], 0], rtol=1e-6)


STEP_END = np.array([[0, 1, 0, 1], [1, 1, 1, 0], [0, 0, 0, 0], [0, 1, 0, 0]])


def stepped():
    """Return rows whose steps end at ``STEP_END``, the last one on a token that is not trained, and the logits."""
    logit = np.random.default_rng(3).normal(size=(4, 4))
    mask = np.ones((4, 4))
    mask[3, 1:] = 0
    paid = jnp.asarray(STEP_END * np.where(logit > 0.2, 0.5, -0.5), jnp.float32)
    held = {"prm": types.Scores(process=jnp.asarray(logit, jnp.float32))}
    r = types.Rollout(jnp.asarray(mask), jnp.asarray([1.0, 0, 1, 0]), jnp.zeros(4, int), token_reward=paid, scores=held)
    ends = STEP_END * mask > 0
    p = 1 / (1 + np.exp(-logit))
    return r, [[x for x, end in zip(*row, strict=True) if end] for row in zip(p, ends, strict=True)]


def test_a_process_reward_model_pays_the_row_by_its_steps():
    r, p = stepped()
    for combine, of in (("product", np.prod), ("minimum", np.min), ("last", lambda x: x[-1])):
        want = [of(x) if x else 0.0 for x in p]
        np.testing.assert_allclose(paid(reward.process(combine=combine), r)[0], want, rtol=1e-6)
    given = np.asarray(r.reward + jnp.sum(r.token_reward * r.mask, axis=1))
    want = [np.prod(x) if x else 0.0 for x in p] + 2.0 * given
    np.testing.assert_allclose(paid(reward.process(verified=2.0), r)[0], want, rtol=1e-6)
    # the labels themselves are not read, and a logit that is not finite counts where a step ends alone
    other = r.replace(token_reward=-3.0 * r.token_reward)
    np.testing.assert_array_equal(paid(reward.process(), other)[0], paid(reward.process(), r)[0])
    for place, valid in (((0, 1), [0, 1, 1, 1]), ((0, 0), [1, 1, 1, 1])):
        broken = {"prm": types.Scores(process=r.scores["prm"].process.at[place].set(jnp.nan))}
        for piece in (reward.process(), reward.process_steps()):
            out = piece.apply(r.replace(scores=broken), piece.init(), jax.random.key(0))[0]
            np.testing.assert_array_equal(ops.valid_rows(out), valid)
            assert np.all(np.isfinite(trajectories.total(out)))


def test_a_process_reward_model_pays_each_step_beside_charges():
    r, p = stepped()
    r = r.replace(raw_logp=jnp.full((4, 4), -1.0), ref_logp=jnp.full((4, 4), -1.25))
    steps, charge = reward.process_steps(), reward.kl("k1", 2.0)

    def applied(*pieces):
        out = r
        for piece in pieces:
            out = piece.apply(out, piece.init(), jax.random.key(0))[0]
        return out

    np.testing.assert_allclose(trajectories.total(applied(steps)), [sum(x) for x in p], rtol=1e-6)
    np.testing.assert_array_equal(applied(steps).token_reward > 0, STEP_END * np.asarray(r.mask) > 0)
    for pieces in ((steps, charge), (charge, steps)):
        out = applied(*pieces)
        np.testing.assert_allclose(trajectories.uncharged(out), [sum(x) for x in p], rtol=1e-5)
        charged = [sum(x) - 0.5 * n for x, n in zip(p, (4, 4, 4, 1), strict=True)]
        np.testing.assert_allclose(trajectories.total(out), charged, rtol=1e-5, atol=1e-6)


def test_the_report_of_steps_counts_them_one_by_one():
    r = np.random.default_rng(1)
    label, logit = r.integers(-1, 2, (6, 8)) * 0.5, r.normal(size=(6, 8))
    label[2] = 0
    out = ranking.steps_report(label, logit)
    pairs = [[(y > 0, z > 0) for y, z in zip(*row, strict=True) if y] for row in zip(label, logit, strict=True)]
    every = [pair for row in pairs for pair in row]
    assert out["steps"] == len(every)
    np.testing.assert_allclose(out["right"], np.mean([y for y, _ in every]))
    np.testing.assert_allclose(out["accuracy"][0], np.mean([np.mean([y == z for y, z in row]) for row in pairs if row]))
    np.testing.assert_allclose(out["accuracy_right"], np.mean([z for y, z in every if y]))
    np.testing.assert_allclose(out["accuracy_wrong"], np.mean([not z for y, z in every if not y]))
    assert ranking.steps_report(0 * label, logit)["steps"] == 0


def test_implicit_rewards_of_several_models_are_combined_as_scores_are():
    r = np.random.default_rng(0)
    logp, mask = r.normal(size=(3, 4, 5)), np.arange(5) < np.array([[5], [3], [1], [4]])
    base = r.normal(size=(4, 5))
    held = {name: types.Scores(logp=jnp.asarray(x, jnp.float32)) for name, x in zip("abc", logp, strict=True)}
    row = types.Rollout(
        jnp.asarray(mask * 1.0), jnp.ones(4), jnp.zeros(4, int), scores=held, ref_logp=jnp.asarray(base)
    )
    each = np.array([[0.5 * sum(x[i, t] - base[i, t] for t in range(5) if mask[i, t]) for i in range(4)] for x in logp])
    mean = [sum(x) / 3 for x in each.T]
    spread = [sum((x - m) ** 2 for x in column) / 3 for column, m in zip(each.T, mean, strict=True)]
    want = {"mean": mean, "worst": [min(x) for x in each.T], "uncertainty": np.subtract(mean, 0.3 * np.array(spread))}
    for combine, paid_ in want.items():
        piece = reward.implicit(("a", "b", "c"), 0.5, combine, 0.3)
        np.testing.assert_allclose(paid(piece, row)[0], paid_, rtol=1e-5, atol=1e-6)
    assert piece.needs.scores == {(name, "logp") for name in "abc"}
    held["b"] = types.Scores(logp=held["b"].logp.at[1, 0].set(jnp.nan))
    np.testing.assert_array_equal(paid(piece, row.replace(scores=held))[1], [1, 0, 1, 1])
    with pytest.raises(ValueError, match=r"implicit: module=\('a', 'a'\) must be at least one name, each once"):
        reward.implicit(("a", "a"))


def test_the_report_of_a_ranking_counts_pairs_one_by_one():
    r = np.random.default_rng(0)
    given, learned = r.integers(0, 2, (40, 5)).astype(float), r.normal(size=(40, 5))
    learned += given
    shares, sure, right = [], [], []
    for p in range(40):
        pairs = [(i, j) for i, j in itertools.permutations(range(5), 2) if given[p, i] > given[p, j]]
        if pairs:
            shares.append(np.mean([learned[p, i] > learned[p, j] for i, j in pairs]))
        for i, j in pairs:
            gap = learned[p, i] - learned[p, j]
            sure.append(1 / (1 + np.exp(-abs(gap))))
            right.append(gap > 0)
    sure, right = np.array(sure), np.array(right)
    error = 0.0
    for low in np.arange(10) / 20 + 0.5:
        inside = (sure >= low) & (sure < low + 0.05)
        error += abs(right[inside].sum() - sure[inside].sum()) / len(sure)
    out = ranking.report(given, learned)
    assert out["pairs"] == len(sure)
    np.testing.assert_allclose(out["accuracy"][0], np.mean(shares))
    np.testing.assert_allclose(out["calibration_error"], error)
    assert ranking.report(np.ones((3, 2)), learned[:3, :2])["pairs"] == 0
