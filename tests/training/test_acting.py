"""Rows of actions in the step of a run: windows, bootstrapped advantages, log-probs, gradients, groups."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import algorithms, types
from rljax.algorithms import interpreter
from rljax.language import parse
from rljax.models import actors
from rljax.models.actors import mlp
from rljax.training import producers
from rljax.training.learning import updates
from tests.support import control

KEY = jax.random.key(3)
CART = "cartpole(horizon=25)"
WINDOWS = {"seam__source": "unrolled(10)", "seam__advantage": "gae(0.9, 0.8)", "batch__prompts": 16}
PPO = "ppo(kl=0.0)"


def windows(**fields):
    return control.started(CART, PPO, **WINDOWS, **fields)


@functools.cache
def compiled():
    """Return (program, step, next): the rows of a step completed, with advantages, and the state of the next step.

    The parameters stay as they are.
    """
    program, step, _ = windows()
    setup = step.setup

    @jax.jit
    def following(state):
        rollout = step.producer.rollout(state, program.key)
        chosen, pool = setup.algorithm.source.select(rollout, state.pool, setup.rows, KEY)
        done = interpreter.transform(setup.algorithm, updates.complete(setup, state, chosen), state.algorithm, KEY)[0]
        cursor = state.cursor.at[setup.cursor].add(producers.taken(setup, state))
        return rollout, done, state.replace(pool=pool, step=state.step + 1, cursor=cursor)

    return program, step, following


@functools.cache
def steps(count=7):
    """Return the initial state and the rows of some steps: as sampled, and with advantages."""
    program, step, following = compiled()
    state, out = step.begin(None, program.key), []
    # a policy and a critic away from their start
    params = jax.tree.map(lambda x: x + 0.5 * jax.random.normal(jax.random.key(x.size), x.shape), state.params)
    state = state.replace(params=params)
    for _ in range(count):
        sampled, done, state = following(state)
        out.append(jax.device_get((sampled, done)))
    return jax.device_get(params), out


# --- windows ------------------------------------------------------------------------------------------


@pytest.mark.full
def test_advantages_of_windows_are_bootstrapped_where_they_are_cut():
    """delta_t = r_t + gamma V(s_{t+1}) - V(s_t), A_t = delta_t + gamma lambda A_{t+1} (arXiv 1506.02438, eq. 16).

    V is 0 behind an episode that the system ended, and the critic's everywhere else.
    """
    params, rows = steps()
    ends = set()
    for sampled, done in rows:
        value = control.network(params["value"], done.motion.observation)[..., 0]
        np.testing.assert_allclose(done.value, value, atol=1e-5)
        for row in range(16):
            length = int(done.mask[row].sum())
            stopped = sampled.finish[row] == types.Finish.STOP
            ends.add((int(sampled.finish[row]), bool(length < 10)))
            advantage, estimate = 0.0, np.zeros(11)
            for t in reversed(range(length)):
                behind = 0.0 if stopped and t == length - 1 else value[row, t + 1]
                delta = done.token_reward[row, t] + 0.9 * behind - value[row, t]
                estimate[t] = advantage = delta + 0.9 * 0.8 * advantage
            np.testing.assert_allclose(done.advantage[row], estimate, atol=2e-5)
            np.testing.assert_allclose(done.returns[row][:length], (estimate + value[row])[:length], atol=2e-5)
    finish = types.Finish
    assert ends >= {(finish.UNFINISHED, False), (finish.STOP, True), (finish.LENGTH, True)}


@pytest.mark.full
def test_windows_of_constant_parameters_are_parts_of_whole_episodes():
    """Joined by their place in the batch they are replayed step by step by the rules, and begin where others end."""
    _, step, _ = compiled()
    rules, (_, rows) = step.setup.task.rules, steps()
    move = jax.jit(lambda state, action: rules.step(state, action, KEY))
    episodes, ended_before, returns = 0, {}, {}
    for place in range(16):
        state, time, total, group = None, 0, 0.0, None
        for sampled, done in rows:
            length = int(sampled.mask[place].sum())
            if state is None:
                assert group is None or sampled.group[place] != group
                state, time, total = rules.begin(jnp.int32(sampled.index[place]), "train"), 0, 0.0
                group = sampled.group[place]
            assert sampled.group[place] == group and done.group[place] == group
            np.testing.assert_array_equal(sampled.turn[place][:length], time + np.arange(length))
            assert np.all(sampled.version[place] == int(sampled.version[0, 0])) and length > 0
            ended = False
            for t in range(length):
                assert not ended
                np.testing.assert_allclose(sampled.motion.observation[place, t], rules.observe(state), atol=1e-4)
                state, moved = move(state, jnp.int32(sampled.motion.taken[place, t]))
                assert sampled.token_reward[place, t] == moved.reward
                time, total, ended = time + 1, total + float(moved.reward), bool(moved.done)
            # what stands behind the last action
            np.testing.assert_allclose(sampled.motion.observation[place, -1], rules.observe(state), atol=1e-4)
            reason = types.Finish.STOP if ended else types.Finish.LENGTH if time == 25 else types.Finish.UNFINISHED
            assert sampled.finish[place] == reason and (length == 10 or reason != types.Finish.UNFINISHED)
            assert done.finish[place] == (types.Finish.LENGTH if reason == types.Finish.UNFINISHED else reason)
            assert done.reward[place] == 0.0 and sampled.valid[place] == done.valid[place] == 1.0
            np.testing.assert_allclose(sampled.motion.state.total[place], total)
            last = ended_before.get(place, total)  # the metric: of the last episode that ended here, or the running one
            returns.setdefault(place, []).append(last if reason == types.Finish.UNFINISHED else total)
            if reason != types.Finish.UNFINISHED:
                ended_before[place] = total
                state, episodes = None, episodes + 1
                judged = types.Outcome.CORRECT if total >= 0.95 * 25 else types.Outcome.WRONG
                assert done.outcome[place] == judged
            else:
                assert done.outcome[place] == types.Outcome.UNJUDGED
    assert episodes >= 16
    for (sampled, _), expected in zip(rows, np.mean([*returns.values()], axis=0), strict=True):
        metrics = step.producer.metrics(sampled)
        assert float(metrics["return"]) == pytest.approx(expected, rel=1e-5)
        assert float(metrics["carried"]) == np.mean(sampled.finish == types.Finish.UNFINISHED)


@pytest.mark.full
def test_rows_that_wait_for_their_group_have_no_actions_and_do_not_count():
    program, step, state = control.started(CART, PPO, **WINDOWS | {"batch__prompts": 4}, batch__samples=4)
    setup, waited = step.setup, 0
    for _ in range(6):
        before = np.asarray(state.pool["free"]), jax.device_get(state.pool["rows"].finish)
        rollout = step.rollout(state, program.key)
        done, _ = setup.algorithm.source.select(rollout, state.pool, setup.rows, KEY)
        waits = ~before[0] & (before[1] != types.Finish.UNFINISHED)
        np.testing.assert_array_equal(np.asarray(done.mask).sum(axis=1) == 0, waits)
        np.testing.assert_array_equal(done.valid, 1.0 - waits)
        first = np.asarray(rollout.turn[:, 0] == 0) & ~waits  # the rows of a group begin together
        assert set(first.reshape(4, 4).sum(axis=1).tolist()) <= {0, 4}
        waited += waits.sum()
        state, metrics = step.update(state, rollout, program.key)
        assert np.isfinite(metrics["loss"]) and float(metrics["valid_rows"]) == 16 - waits.sum()
    assert waited > 0


@pytest.mark.full
def test_the_prompts_of_windows_are_those_of_the_shuffle_each_once():
    _, rows = steps()
    seen = {}
    for sampled, _ in rows:
        for group, index in zip(sampled.group.tolist(), sampled.index.tolist(), strict=True):
            assert seen.setdefault(group, index) == index
    assert sorted(seen) == list(range(len(seen))) and len({*seen.values()}) == len(seen)


# --- log-probs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "fields"),
    [
        ("pendulum()", {"seam__source": "unrolled(5)", "model__mlp__normalise": True, "model__mlp__squash": True}),
        pytest.param("acrobot(horizon=6)", {"sampler__temperature": 0.7}, marks=pytest.mark.full),
        pytest.param("lqr(horizon=5)", {"model__mlp__normalise": True}, marks=pytest.mark.full),
    ],
)
@pytest.mark.full
def test_the_first_minibatch_is_scored_as_it_was_sampled_and_statistics_are_those_of_all_steps(task, fields):
    """Statistics of observations change between updates only: the ratio of a first gradient step is 1."""
    program, step, state = control.started(task, PPO, learner__epochs=2, learner__minibatches=2, **fields)
    observed = []
    for _ in range(3):
        sampled = step.rollout(state, program.key)
        rows = jax.device_get(updates.complete(step.setup, state, sampled))
        np.testing.assert_allclose(rows.proximal_logp, rows.behaviour_logp, atol=2e-6)
        np.testing.assert_array_equal(rows.behaviour_logp[rows.mask == 0], 0.0)
        assert np.all(rows.mask[:, -1] == 0) and rows.mask.sum() > 0
        observed.append(rows.motion.observation[rows.mask > 0])
        state, metrics = step.update(state, sampled, program.key)
        assert 0.0 <= float(metrics["sampler_gap"]) <= 1e-6 and float(metrics["skipped_in_row"]) == 0
        for module in ("policy", "value"):
            statistics = jax.device_get(state.params[module].get(mlp.STATISTICS))
            assert (statistics is not None) == fields.get("model__mlp__normalise", False)
            if statistics is not None:
                of = np.concatenate(observed).astype(np.float64)
                assert statistics["count"] == len(of)
                np.testing.assert_allclose(statistics["mean"], of.mean(axis=0), atol=1e-5)
                np.testing.assert_allclose(statistics["square"] / len(of), of.var(axis=0), rtol=1e-4)


# --- expected gradients -------------------------------------------------------------------------------


def enumerated_rows():
    """Return the rows of all episodes of ``tables`` in float64."""
    places, taken, paid, mask = control.enumerated()
    observation = np.eye(4)[places][..., :3]  # the end looks like nothing
    wide = [np.pad(x, ((0, 0), (0, 1))) for x in (taken, paid, mask)]
    motion = actors.Motion(jnp.asarray(observation), jnp.asarray(wide[0], jnp.int32))
    stopped = places[:, -1] == control.END
    finish = np.where(stopped, int(types.Finish.STOP), int(types.Finish.LENGTH))
    return types.Rollout(
        mask=jnp.asarray(wide[2]), reward=jnp.zeros(len(taken)), group=jnp.arange(len(taken)), motion=motion,
        token_reward=jnp.asarray(wide[1]), finish=jnp.asarray(finish), valid=jnp.ones(len(taken)),
    )  # fmt: skip


def policy_of(params):
    """Return the chances [4, 2] of the actions of each state."""
    z = control.network(params, np.eye(4)[:, :3])
    return np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)


def values_of(p, horizon=control.HORIZON):
    """Return V with k steps left, [horizon + 1, 4], by dynamic programming."""
    v = [np.zeros(4)]
    for _ in range(horizon):
        q = control.PAID + v[-1][control.NEXT]
        v.append(np.where(np.arange(4) == control.END, 0.0, (p * q).sum(axis=1)))
    return np.stack(v)


def exact_gradient(params, eps=1e-5):
    """Return the gradient of the expected return in every parameter, by differences of its exact value."""
    leaves, tree = jax.tree.flatten(params)
    flat, shapes = np.concatenate([np.ravel(x) for x in leaves]), [x.shape for x in leaves]

    def value(x):
        parts = np.split(x, np.cumsum([np.prod(s, dtype=int) for s in shapes])[:-1])
        given = jax.tree.unflatten(tree, [y.reshape(s) for y, s in zip(parts, shapes, strict=True)])
        return values_of(policy_of(given))[-1][0]

    eye = np.eye(len(flat)) * eps
    return np.array([(value(flat + e) - value(flat - e)) / (2 * eps) for e in eye])


@pytest.mark.full
def test_rows_of_the_program_are_rows_of_the_enumeration():
    program, step, state = control.started(batch__prompts=64)
    rows = jax.device_get(step.rollout(state, program.key))
    places, taken, paid, mask = control.enumerated()
    known = {tuple(t[m > 0].tolist()): n for n, (t, m) in enumerate(zip(taken, mask, strict=True))}
    assert len(known) == len(taken)
    met = set()
    for row in range(64):
        n = known[tuple(rows.motion.taken[row][rows.mask[row] > 0].tolist())]
        met.add(n)
        np.testing.assert_array_equal(rows.mask[row], [*mask[n], 0])
        np.testing.assert_array_equal(rows.token_reward[row], [*paid[n], 0])
        length = int(mask[n].sum())
        seen = np.eye(4)[places[n]][:, :3]
        np.testing.assert_array_equal(rows.motion.observation[row, :length], seen[:length])
        np.testing.assert_array_equal(rows.motion.observation[row, -1], seen[-1])
        assert rows.finish[row] == (types.Finish.STOP if places[n, -1] == control.END else types.Finish.LENGTH)
        assert rows.parts["twos"][row] == np.sum(places[n, 1 : length + 1] == 2)
        assert rows.outcome[row] == (types.Outcome.CORRECT if paid[n].sum() > 1 else types.Outcome.WRONG)
    assert len(met) >= 4


@pytest.mark.full
@pytest.mark.parametrize(
    ("call", "arguments"),
    [("reinforce", {}), ("ppo", {"kl": 0.0, "lam": 1.0}), ("ppo", {"kl": 0.0, "lam": 0.3})],
)
def test_the_expected_gradient_is_that_of_the_expected_return(call, arguments):
    """Over all episodes; the values behind the horizon are those of a critic that is right: 0.

    PPO divides advantages by their deviation over the batch, here over all episodes, each as often as another.
    """
    program, _, state = control.started()
    with jax.enable_x64(True):
        params = jax.tree.map(
            lambda x: jnp.asarray(np.asarray(x, np.float64) + 0.4 * np.random.default_rng(x.size).normal(size=x.shape)),
            jax.device_get(state.params["policy"]),
        )
        rows, actor = enumerated_rows(), program.steps[0].setup.networks["policy"]
        places, taken, paid, mask = control.enumerated()
        p = policy_of(params)
        chance = np.prod(np.where(mask > 0, p[places[:, :-1], taken], 1.0), axis=1)
        assert chance.sum() == pytest.approx(1.0)
        left = control.HORIZON - np.arange(control.HORIZON + 1)
        value = np.where(places == control.END, 0.0, values_of(p)[left, places])
        logp, pull = jax.vjp(lambda x: actor.score(x, rows, types.Needs()).logp, params)
        rows = rows.replace(value=jnp.asarray(value), behaviour_logp=logp, raw_logp=logp, proximal_logp=logp)
        algorithm = algorithms.TABLE[call](**arguments)
        inner = interpreter.init(algorithm)
        done, _ = interpreter.transform(algorithm, rows, inner, KEY)
        objective, held = algorithm.objectives[0], inner["objectives"][0]
        ready, held = interpreter.prepare_minibatch(objective, done, None, held, KEY)
        slope = jax.grad(lambda x: interpreter.loss(objective, ready, types.Scores(logp=x), held, KEY)[0])(logp)
        count = len(taken) if call == "reinforce" else mask.sum()  # undoes the mean over rows, or over actions
        (gradient,) = pull(slope * chance[:, None] * count)
        gradient = -np.concatenate([np.ravel(x) for x in jax.tree.leaves(gradient)])
    expected = exact_gradient(jax.device_get(params))
    if call == "ppo":
        delta = (paid + value[:, 1:] - value[:, :-1]) * mask
        estimate = np.zeros_like(delta)
        for t in reversed(range(control.HORIZON)):
            behind = estimate[:, t + 1] if t + 1 < control.HORIZON else 0.0
            estimate[:, t] = (delta[:, t] + arguments["lam"] * behind) * mask[:, t]
        np.testing.assert_allclose(
            np.asarray(done.returns)[:, :-1] * mask, (estimate + value[:, :-1]) * mask, atol=1e-9
        )
        expected = expected / estimate[mask > 0].std(ddof=1)
    assert np.max(np.abs(expected)) > 0.05
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


# --- groups, and tokens -------------------------------------------------------------------------------


@pytest.mark.full
def test_group_baselines_are_of_whole_returns():
    """A_t = (reward from t on - mean of the returns) / deviation of the returns: at first the z-score of the return."""
    program, step, state = control.started("cartpole(horizon=20)", "grpo(kl=0.0)", batch__samples=4)
    sampled = jax.device_get(step.rollout(state, program.key))
    first = sampled.motion.observation[:, 0].reshape(8, 4, -1)
    np.testing.assert_array_equal(first, np.broadcast_to(first[:, :1], first.shape))
    assert len({*sampled.group.tolist()}) == 8
    done, _ = interpreter.transform(step.setup.algorithm, jax.device_put(sampled), state.algorithm, KEY)
    total = sampled.mask.sum(axis=1).reshape(8, 4)  # a step pays 1
    mean, deviation = (np.repeat(f(total, axis=1), 4)[:, None] for f in (np.mean, functools.partial(np.std, ddof=1)))
    assert np.any(deviation > 0)
    left = total.reshape(-1, 1) - np.arange(21)[None]
    expected = (left - mean) / np.where(deviation > 0, deviation, 1.0)
    np.testing.assert_allclose(done.advantage * sampled.mask, expected * sampled.mask, atol=1e-3)


CALLS = ("reinforce()", "rloo()", "grpo(kl=0.0)", "dr_grpo()", "dapo()", "gspo()", "cispo()", "reinforce_plus_plus()")
CALLS += ("ppo(kl=0.0)", "ppo(kl=0.05, gamma=0.9)", "vc_ppo()")


@pytest.mark.full
@pytest.mark.parametrize("call", CALLS)
def test_tokens_and_actions_with_equal_numbers_have_equal_losses(call):
    """A row of tokens and a row of actions that the system ended differ in nothing that the mathematics reads."""
    draws = np.random.default_rng(4)
    rows, width = 8, 6
    length = draws.integers(1, width, rows)
    mask = jnp.asarray(np.arange(width)[None] < length[:, None], jnp.float32)
    numbers = [jnp.asarray(draws.normal(size=(rows, width)), jnp.float32) for _ in range(6)]
    logp, behaviour, reference = (-jnp.abs(x) * mask for x in numbers[:3])
    plain = types.Rollout(
        mask=mask, reward=jnp.zeros(rows), group=jnp.arange(rows) // 4, behaviour_logp=behaviour, raw_logp=behaviour,
        proximal_logp=behaviour, ref_logp=reference, value=numbers[3], token_reward=numbers[4] * mask,
        entropy=jnp.abs(numbers[5]), valid=jnp.ones(rows), finish=jnp.full(rows, int(types.Finish.STOP)),
        outcome=jnp.asarray(draws.integers(0, 2, rows)), on_policy=jnp.ones(rows), episode=jnp.arange(rows),
        agent=jnp.zeros(rows, jnp.int32), turn=jnp.zeros((rows, width), jnp.int32),
        version=jnp.zeros((rows, width), jnp.int32),
    )  # fmt: skip
    taken = jnp.asarray(draws.integers(0, 2, (rows, width)), jnp.int32)
    tokens = plain.replace(action=types.Action(taken))
    motion = plain.replace(motion=actors.Motion(jnp.asarray(draws.normal(size=(rows, width, 3))), taken))
    algorithm = parse.one(call, parse.Registry("algorithm", algorithms.TABLE), "algorithm")
    results = []
    for rollout in (tokens, motion):
        inner = interpreter.init(algorithm)
        done, _ = interpreter.transform(algorithm, rollout, inner, KEY)
        out = [done.advantage, done.returns]
        for objective, held in zip(algorithm.objectives, inner["objectives"], strict=True):
            scores = types.Scores(logp=logp, entropy=numbers[5], value=numbers[3] + 0.1)
            ready, held = interpreter.prepare_minibatch(objective, done, scores, held, KEY)
            scored = jax.value_and_grad(lambda s, o=objective, r=ready, i=held: interpreter.loss(o, r, s, i, KEY)[0])
            out.append(scored(scores))
        results.append(jax.device_get(out))
    assert np.any(results[0][0] != 0) and np.any(results[0][2][1].logp != 0)
    jax.tree.map(np.testing.assert_array_equal, *results)


@pytest.mark.full
def test_demonstrations_are_whole_episodes_of_the_expert():
    program, step, state = control.started("cartpole(horizon=20)", "sft()")
    rows = jax.device_get(step.rollout(state, program.key))
    place, speed, angle, turning = np.moveaxis(rows.motion.observation * np.array([2.4, 2, np.pi / 15, 2]), -1, 0)
    leaning = angle + 0.5 * turning + 0.05 * place + 0.1 * speed
    clear = (rows.mask > 0) & (np.abs(leaning) > 1e-5)
    np.testing.assert_array_equal(rows.motion.taken[clear], leaning[clear] > 0)
    assert rows.mask.sum(axis=1).tolist() == [20] * 8 and not rows.on_policy.any() and rows.behaviour_logp is None
    _, first = step.update(jax.tree.map(jnp.copy, state), jax.device_put(rows), program.key)
    policy = step.setup.networks["policy"].policy(state.params["policy"], rows.motion.observation)
    logp = np.asarray(policy.logp(jnp.asarray(rows.motion.taken)))
    np.testing.assert_allclose(first["loss"], -logp[rows.mask > 0].mean(), rtol=1e-5)
