"""The pieces of the advantage seam: identities of their papers, numbers by hand, extreme inputs."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import transforms, types
from rljax.transforms import advantage as adv
from rljax.transforms import ops
from tests.support import batch

KEY = jax.random.key(0)
CENTRE = adv.center_by_group()
STEPS = (CENTRE, adv.center_steps())
CALLS = {
    **{
        "role_baseline": (2,),
        "value_tracker": (10,),
        "zscore_by_prompt": (10,),
        "log_partition_baseline": (0.1,),
        "pass_at_k": (2,),
    },
    **{"clamp": (0.5,), "mix": STEPS, "convex": (*STEPS, 0.25), "partition_target": (15.0,)},
    "part_baseline": ("iou",),
}
PIECES = {name: build(*CALLS.get(name, ())) for name, build in transforms.pieces("advantage").items()} | {
    "by_agent": adv.scale_by(("group", "agent"), epsilon=0.0),
    "by_rollout": adv.center_by("group", per="episode"),
    "by_token": adv.center_by(("domain", "turn"), per="token"),
    "by_first_turn": adv.scale_by("batch", 0.0, only="first_turn"),
    "by_on_policy": adv.scale_by("group", only="on_policy"),
    "by_rollout_spread": adv.scale_by("group", per="episode"),
    "by_tag": adv.center_steps(("group", "tag"), "tag"),
    "whiten_by_role": adv.whiten(0.0, ("domain", "agent")),
    "values": transforms.chain(adv.values(), adv.gae(), kind=types.RolloutTransform),  # they are read by the next piece
}


def array(x):
    x = np.asarray(x)
    return jnp.asarray(x, jnp.float32 if x.dtype.kind == "f" else jnp.int32)


def record(mask, reward, group=None, **fields):
    fields = jax.tree.map(array, fields, is_leaf=lambda x: isinstance(x, list | np.ndarray))
    group = array([0] * len(reward) if group is None else group)
    mask, reward = (jnp.asarray(x, jnp.float32) for x in (mask, reward))
    return types.Rollout(mask=mask, reward=reward, group=group, **fields)


def ones(reward, group=None, width=1, **fields):
    return record(np.ones((len(reward), width)), reward, group, **fields)


def run(r, *pieces):
    @jax.jit  # one program is cheaper to compile than its many operations
    def chain(r):
        for p in pieces:
            r, _ = p.apply(r, p.init(), KEY)
        return r

    return chain(r)


def get(r, *pieces):
    return np.asarray(run(r, *pieces).advantage)


def row(r, *pieces):
    return get(r, *pieces)[:, 0]


def close(a, b, **tolerance):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), **{"rtol": 1e-5, "atol": 2e-6, **tolerance})


Q = ("q_returns", "soft_q_returns", "log_sum_exp_returns", "dueling_q_returns")  # pieces that write the target of Q
V = ("partition_target", "tree_targets")  # pieces that write the target of V only


@pytest.mark.default_tier(10)
@pytest.mark.parametrize("name", PIECES)
def test_every_piece_counts_only_what_counts_and_is_finite_on_extremes(name):
    d, piece = batch.arrays(0, "mars"), PIECES[name]
    r, _ = batch.records(d)

    @jax.jit
    def out(r):
        with jax.numpy_dtype_promotion("strict"):
            done, state = piece.apply(r, piece.init(), KEY)
        target = dict.fromkeys(V, done.returns) | dict.fromkeys(Q, done.extra.get("q_returns"))  # no advantage
        return target.get(name, done.advantage), done.returns, state

    a = out(r)[0]
    assert a.dtype == jnp.float32 and np.isfinite(a).all()
    np.testing.assert_array_equal(np.asarray(a)[np.asarray(d["mask"]) == 0], 0)
    assert name in (*V, *Q) or not a[8].any()  # the invalid row
    order = np.random.default_rng(1).permutation(batch.B)
    close(out(batch.records(batch.select(d, order))[0])[0], np.asarray(a)[order], atol=1e-5)
    garbage = out(r.replace(reward=r.reward.at[8].set(jnp.nan), token_reward=r.token_reward.at[8].set(9e9)))[0]
    close(np.delete(garbage, 8, 0), np.delete(a, 8, 0), atol=1e-5)
    for extreme in (
        r.replace(reward=jnp.full_like(r.reward, 0.1), token_reward=r.mask * 0),
        r.replace(mask=r.mask * 0),
        r.replace(valid=r.valid * 0),
        r.replace(valid=r.valid.at[1:].set(0)),
        r.replace(group=jnp.arange(batch.B)),
        r.replace(value=r.value * 0, raw_logp=r.raw_logp * 0, ref_logp=r.ref_logp * 0, square_prob=r.mask),
        # the rows that a statistic counts have no spread, the others differ from them
        r.replace(reward=1.0 - r.on_policy, token_reward=r.mask * 0),
        # rollouts of a group are worth the same, their rows are not
        r.replace(reward=jnp.tile(array([1.0, -1.0]), 6), episode=array(np.arange(12) // 2), token_reward=r.mask * 0),
        # rows of a group are worth the same, their tokens are not
        r.replace(reward=r.reward * 0, token_reward=r.mask - 2 * ops.last_token(r.mask)),
    ):
        leaves = jax.tree.leaves(out(extreme))
        assert all(np.isfinite(x).all() for x in leaves) and max(np.abs(x).max() for x in leaves) < 1e3
    with jax.enable_x64(True):
        shape = jax.eval_shape(lambda r: run(r, piece), batch.records(d, jnp.float64)[0])
        written = shape.advantage, shape.returns, shape.extra["q_returns"] if name in Q else None
        assert {x.dtype for x in written if x is not None} == {jnp.dtype("float64")}


def test_numbers_may_be_traced_and_needs_and_errors_are_right():
    r = ones([1, 0, 0, 1, 0], turn=[[0]] * 5, token_reward=[[0.5], [1.5], [2.0], [0.0], [1.0]])
    for build in (lambda x: adv.scale_by("group", x), adv.log_partition_baseline, lambda x: adv.convex(*STEPS, x)):
        close(jax.jit(lambda x, build=build: run(r, build(x)).advantage)(0.5), get(r, build(0.5)))
    assert CENTRE.spec == "center_by_group()" and adv.whiten().seam == "advantage"
    assert adv.mix(*STEPS).spec.startswith("mix(first=center_by_group(), second=center_steps(key=('group', 'turn')")
    assert CENTRE.needs == types.Needs(siblings=True) and adv.whiten().needs == types.Needs()
    assert adv.center_by(only="kept").needs.parts == {"kept"} and PIECES["by_tag"].needs.extra == {"tag"}
    assert adv.optimal_token_baseline().needs.square_prob and adv.mix(CENTRE, adv.gae()).needs.value
    with pytest.raises(ValueError, match="keys of tokens"):
        adv.center_by(("group", "turn"))
    with pytest.raises(ValueError, match="no part 'greedy_reward'"):
        get(r, adv.part_baseline("greedy_reward"))
    with pytest.raises(ValueError, match="the rollout has no value"):
        get(r, adv.gae())


def test_the_two_functions_and_what_they_count():
    reward, on_policy = np.array([4, 0, 2, 0, 9]), [1.0, 1, 1, 0, 1]
    r = ones(reward, [0, 0, 0, 0, 1], episode=[7, 7, 8, 9, 5], agent=[0, 0, 1, 1, 0], on_policy=on_policy)
    close(row(r, adv.center_by(per="row")), [2.5, -1.5, 0.5, -1.5, 0])
    for per in ("trajectory", "episode"):
        close(row(r, adv.center_by(per=per))[:4], reward[:4] - 4 / 3)  # rollouts of 2, 2 and 0
        close(row(r, adv.scale_by(epsilon=0.0, per=per))[:4], reward[:4] / np.std([2, 2, 0], ddof=1))
    close(row(r, adv.center_by(("group", "agent"))), [2, -2, 1, -1, 0])
    only = adv.center_by(only="on_policy", per="row"), adv.scale_by(only="on_policy", ddof=0, per="row")
    close(row(r, *only)[:4], np.array([2, -2, 0, -2]) / np.std([4, 0, 2]))
    # a rollout cut into rows keeps its advantage
    whole, cut = ones([1, 0, 0], episode=[0, 1, 2]), ones([1, 0, 0, 0], episode=[0, 1, 1, 2])
    pair = adv.center_by(per="episode"), adv.scale_by(per="episode")
    close(row(cut, *pair)[[0, 1, 3]], row(whole, *pair))
    close(row(whole, *pair), row(whole, adv.zscore_by_group()))
    tokens = record([[1, 1, 0], [1, 1, 1]], [3, 0], turn=[[0, 1, 1], [0, 0, 1]], advantage=[[1.0, 2, 9], [3, 5, 8]])
    close(get(tokens, adv.center_by("turn", per="token")), [[-2, -3, 0], [0, 2, 3]])


@pytest.mark.full
def test_presets_and_other_scales_by_hand():
    close(np.abs(row(ones([1, 0, 0, 0]), adv.zscore_by_group(0.0, 0))).mean(), 2 * np.sqrt(0.25 * 0.75))
    close(row(ones([1, 0, 0, 0]), CENTRE, adv.scale_by_group_mean()), [3, -1, -1, -1])
    np.testing.assert_array_equal(row(ones([0, 0]), adv.scale_by_group_mean()), 0)
    two = ones([1, 0, 3, 0, 5, 5], [0, 0, 1, 1, 2, 2], domain=[0, 0, 0, 0, 1, 1])
    s = np.sqrt((0.5 + 4.5) / 2)  # the mean of two variances
    close(row(two, CENTRE, adv.scale_by_task(0.0)), np.array([0.5, -0.5, 1.5, -1.5, 0, 0]) / s)
    close(row(two.replace(domain=two.group), CENTRE, adv.scale_by_task()), row(two, adv.zscore_by_group()))
    close(row(two, CENTRE, adv.scale_by_informative_share(0.5)), row(two, CENTRE) / (2 / 3))
    close(row(two, CENTRE, adv.scale_by_informative_share(0.8)), row(two, CENTRE) / 0.8)
    lens = ones([1, -0.5, -0.2, -0.4], [0, 0, 1, 1])
    close(row(lens, CENTRE, adv.scale_mixed_groups()), [np.sqrt(0.5), -np.sqrt(0.5), 0.025, -0.025])
    far = ones([0] * 20, advantage=[[1.0]] * 19 + [[100.0]])
    np.testing.assert_array_equal(row(far, adv.drop_outliers()), [1] * 19 + [0])
    r = ones([0, 0, 0], advantage=[[-2.0], [0.5], [2.0]])
    np.testing.assert_array_equal(row(r, adv.clamp(1.0)), [-1, 0.5, 1])
    np.testing.assert_array_equal(row(r, adv.binarise(0.5)), [0, 0, 1])
    np.testing.assert_array_equal(row(r, adv.positive_part()), [0, 0.5, 2])
    a = [[1.0] * 3, [3] * 3, [8] * 3, [7] * 3]
    r = record([[1, 1, 1], [1, 0, 0], [1, 0, 0], [0, 0, 0]], [0] * 4, advantage=a, agent=[0, 0, 1, 1])
    z = [*(np.array([1, 3, 8]) - 4) / np.std([1, 3, 8], ddof=1), 0]
    close(get(r, adv.standardise_rows()), np.array(z)[:, None] * np.asarray(r.mask))
    tokens = np.array([1, 1, 1, 3, 8])
    close(row(r, adv.whiten())[0], (1 - tokens.mean()) / tokens.std(ddof=1))
    close(row(r, adv.whiten(key="agent")), [-0.5, 1.5, 0, 0], atol=1e-4)  # tokens 1 1 1 3, and 8


def test_baselines_by_hand():
    r = ones([1, 0], parts={"greedy_reward": [0.5, 0.25], "optimal_value": [0.1, 0.2], "prompt_value": [1.0, 2.0]})
    close(row(r, adv.part_baseline("greedy_reward")), [0.5, -0.25])
    close(row(r, adv.part_baseline("optimal_value")), [0.9, -0.2])
    close(row(r, adv.part_baseline("prompt_value")), [0, -2])
    r = record([[1, 0, 0], [1, 1, 1]], [1, 0])
    close(get(r, adv.length_weighted_baseline()), [[0.75, 0, 0], [-0.25] * 3])  # sums to 0
    close(get(ones([1, 0, 0], width=2), adv.length_weighted_baseline()), get(ones([1, 0, 0], width=2), CENTRE))
    r = ones([1, 0, 0.5, 1, 0, 0, 7], [0, 0, 0, 1, 1, 1, 2])
    close(row(r, adv.log_partition_baseline(1e2)), row(r, adv.leave_one_out()), atol=1e-2)
    close(row(r, adv.log_partition_baseline(1e-4)), [0.5, -1, -0.5, 1, -1, -1, 0], atol=1e-3)  # the best other row
    close(row(r, adv.log_partition_baseline(0.5))[0], 1 - 0.5 * np.log((1 + np.e) / 2))
    pi, square = np.array([[0.5, 0.5, 0.5], [0.25, 0.5, 1]]), np.array([[0.38, 0.5, 0.5], [0.4, 0.5, 1]])
    close(1 - 2 * 0.5 + 0.38, np.sum((np.eye(3)[0] - [0.5, 0.3, 0.2]) ** 2))  # the squared gradient of the logits
    r = record([[1, 1, 1], [1, 1, 0]], [1, 0], raw_logp=np.log(pi), square_prob=square)
    w = np.cumsum(1 - 2 * pi + square, axis=1)
    b = w[0, :2] / w[:, :2].sum(axis=0)
    close(get(r, adv.optimal_token_baseline()), [[1 - b[0], 1 - b[1], 1], [-b[0], -b[1], 0]])
    close(get(jax.tree.map(lambda x: x[:1], r), adv.optimal_token_baseline()), [[0, 0, 0]])  # a group of one


def test_running_baselines_read_first_and_then_move():
    piece, r = adv.role_baseline(3, 0.5), ones([1, 3, 5], agent=[0, 0, 2])
    out, state = piece.apply(r, piece.init(), KEY)
    close([*out.advantage[:, 0], *state], [1, 3, 5, 1, 0, 2.5])
    out, state = piece.apply(r.replace(valid=array([1.0, 0, 0])), state, KEY)
    close([*out.advantage[:, 0], *state], [0, 0, 0, 1, 0, 2.5])
    games = adv.role_baseline(2, 0.5, games=2)  # a baseline for each role of each game
    _, state = games.apply(r.replace(domain=jnp.array([0, 1, 5])), games.init(), KEY)
    close(state, [0.5, 0, 1.5, 2.5])
    piece = adv.value_tracker(4)
    out, (a, b) = piece.apply(ones([1, 0, 1], index=[1, 3, 3], parts={"drift": [0.0, 0.06, 9.0]}), piece.init(), KEY)
    close(out.advantage[:, 0], [0.5, -0.5, 0.5])
    keep = np.array([1, 0.96, 1, 0.875])
    close((a, b), 4 * keep + np.array([[0, 1, 0, 1], [0, 0, 0, 1]]))


def test_statistics_of_prompts_are_those_of_their_last_rewards():
    """As DDPO's tracker, with a queue for each prompt."""
    draws, window, least = np.random.default_rng(0), 4, 3
    piece, queues = adv.zscore_by_prompt(5, window, least), {i: collections.deque(maxlen=window) for i in range(5)}
    state = piece.init()
    for _ in range(6):
        index, reward, valid = draws.integers(0, 4, 12), draws.normal(size=12), draws.integers(0, 5, 12) > 0
        out, state = piece.apply(ones(reward, index=list(index), valid=array(1.0 * valid)), state, KEY)
        for i, x in zip(index[valid], reward[valid], strict=True):
            queues[i].append(x)
        batch = reward[valid].mean(), reward[valid].std()
        used = [(np.mean(q), np.std(q)) if len(q) >= least else batch for q in (queues[i] for i in index)]
        expected = [(x - mean) / (std + 1e-6) for x, (mean, std) in zip(reward, used, strict=True)]
        close(out.advantage[:, 0][valid], np.array(expected)[valid], atol=1e-4)
    assert np.any(state[1] == 0) and np.all(state[1][:4] > window)
    with pytest.raises(ValueError, match="least=5: must be at most window=4"):
        adv.zscore_by_prompt(5, 4, 5)


@pytest.mark.parametrize("right", [0, 1, 4, 6])
def test_pass_at_k_sums_to_zero(right):
    r = ones([1] * right + [0] * (6 - right))
    for k in (1, 2, 3, 8):
        got = row(r, adv.pass_at_k(k))
        close(got.sum(), 0, atol=1e-4)
        assert 6 - right >= k or not got.any()
    close(row(r, adv.pass_at_k(1)), row(r, adv.zscore_by_group(1e-6, 0)), atol=1e-4)
    if right == 1:  # R = 1 - C(5, 2) / C(6, 2) = 1/3, C(4, 1) / C(5, 1) = 4/5
        close(row(r, adv.pass_at_k(2)), np.array([2 / 3, *[2 / 3 - 4 / 5] * 5]) / np.sqrt(2 / 9), rtol=1e-4)


@pytest.mark.full
def test_outcomes_by_hand():
    h = [[1.0, 3], [2, 1], [1, 1], [1, 5], [2, 4]]
    r = record([[1, 1], [1, 1], [1, 1], [1, 0], [1, 1]], [1, 0, 1, 0, 0], [0, 0, 1, 2, 2], entropy=h)
    got = get(r, adv.zscore_by_group(), adv.zero_variance(0.5))
    close(got[:2], get(r, adv.zscore_by_group())[:2])  # mixed groups as they were
    close(got[2:], [[0.5, 0.5], [0, 0], [-1, 0]])
    r = ones([3, 1, 2, 5, 5, 7], [0, 0, 0, 1, 1, 2], parts={"beats_reference": [0.0, 1, -1, 1, 1, 0]})
    close(row(r, adv.best_minus_second()), [1, 0, 0, 0, 0, 0])
    close(row(r.replace(reward=r.reward * 8), adv.best_minus_second(True)), [1, 0, 0, 0, 0, 0])  # std 8
    close(row(r, adv.pairwise_reference()), [0, 1, -1, 0, 0, 0])
    answer = ones([0.5, 0.25], width=2, extra={"reference_answer": [[0, 1], [0, 1]]})
    close(get(answer, adv.leave_one_out(), adv.reward_on_reference_answer()), [[0.25, 0.5], [-0.25, 0.25]])
    teacher = ones([0], width=2, raw_logp=[[-1.0, -2]], ref_logp=[[-1.0, -0.5]])
    close(get(teacher, adv.distillation()), [[0, 1.5]])
    close(get(teacher, CENTRE, adv.charge_kl("k1", 0.5)), [[0.75, 0.75]])  # to go: 0 - 1.5 and -1.5
    one = ones([1, 0, 0], extra={"segment": [[0]] * 3, "cut_reward": [[1.0], [0], [0]]})
    close(get(one, adv.budget_relative()), get(one, CENTRE))
    r = ones([0, 0], width=3, extra={"segment": [[0, 1, 2]] * 2, "cut_reward": [[1.0, 0, 1], [0, 0, 0]]})
    ahead, left = np.array([[2, 1, 1], [0, 0, 0]]) / 3, np.array([1, 2 / 3, 1 / 3])
    before = np.array([[0, 1, 1 / 3], [0, 0, 0]])  # (1 * 1 + 2 * 0) / 3
    close(get(r, adv.budget_relative()), ahead - (1 - left) * before * left - left * ahead.mean(0))


def test_critics_by_hand():
    r = record([[1, 0, 1], [1, 1, 1]], [1, 0], value=[[0.5, 9, 0.25], [0.1, 0.2, 0.4]], finish=[0, 1])
    close(get(r, adv.gae()), [[0.5, 0, 0.75], [-0.1, -0.2, -0.4]])
    out = run(r, adv.gae(1.0, 0.0, value_lam=1.0))
    close(out.advantage, [[-0.25, 0, 0.75], [0.1, 0.2, -0.4]])
    close(out.returns, [[1, 0, 1], [0, 0, 0]])
    cut = get(r, adv.truncated_gae(0.5))
    close(cut[0], [0.5 * 0.25 - 0.5 + 0.5 * (1 + 0.5 * 0.25 - 0.25), 0, 1 + 0.5 * 0.25 - 0.25])
    close(cut[1], get(r, adv.gae(0.5))[1])  # it stopped by itself
    out = run(r, adv.length_adaptive_gae(0.4))
    close(out.advantage[0], get(r, adv.gae(1.0, 0.0))[0])  # 1 / 0.8 > 1
    close(out.advantage[1], get(r, adv.gae(1.0, 1 / 6))[1])  # 1 - 1 / 1.2
    close(out.returns, run(r, adv.gae()).returns)
    fields = {"value": [[3.0, 7, 7, 5]], "token_reward": [[1.0, 2, 5, 4]]}
    r = record([[1, 1, 0, 1]], [10], turn=[[0, 0, 0, 1]], **fields)
    out = run(r, adv.turn_gae(0.5, 0.5))  # turns paid 3 and 14, values 3 and 5
    first, last = 3 + 0.5 * 5 - 3 + 0.25 * 9, 14 - 5
    close(out.advantage, [[first, first, 0, last]])
    close(out.returns, [[first + 3, first + 3, 0, last + 5]])
    close(get(r.replace(turn=r.turn * 0), adv.turn_gae(0.3, 0.7)), [[14, 14, 0, 14]])  # a bandit: 17 - 3
    out = run(r, adv.step_value_difference(0.5))
    close(out.advantage, [[5 - 3 - 0.5 + 3 + 17] * 2 + [0, 0 - 5 - 0.5 + 14 + 14]])
    close(out.returns, [[17, 17, 0, 14]])
    paid = {"value": [[1.0, 9], [5, 0], [0, 9]], "token_reward": [[0.0, 0], [0, 4], [3, 0]]}
    r = record([[1, 1], [0, 1], [1, 0]], [2, 0, 0], advantage=[[1.0, 2], [0, 3], [4, 0]], **paid)  # 1, 4, 3 above V
    close(get(r, adv.keep_above_value(0.5)), [[0, 0], [0, 3], [4, 0]])
    together = r.replace(episode=jnp.array([0, 1, 1]))  # 1 above V, and 7
    close(get(together, adv.keep_above_value(0.0)), [[0, 0], [0, 3], [4, 0]])
    close(get(together, adv.keep_above_value(1.0)), r.advantage)
    r = record([[1, 1, 0]], [0], advantage=[[2.0, 4, 0]], ref_logp=[[-1.0, -2, 5]], raw_logp=[[-3.0, -2, 7]])
    close(run(r, adv.partition_target(10.0)).returns, [[31, 31, 0]])
    close(get(r, adv.partition_target(10.0)), r.advantage)


@pytest.mark.full
def test_trees():
    d = batch.arrays(3)
    got, end = get(batch.records(d)[0], adv.prefix_tree()), [max(np.flatnonzero(m), default=-1) for m in d["mask"]]
    for i in np.flatnonzero(d["valid"]):
        same = [j for j in np.flatnonzero(d["valid"]) if d["group"][j] == d["group"][i]]
        begin = [[j for j in same if end[j] >= n - 1 and all(d["token"][j, :n] == d["token"][i, :n])] for n in range(7)]
        rise = np.diff([np.mean(d["reward"][j]) if j else 0 for j in begin])
        close(got[i], (d["reward"][i] - np.mean(d["reward"][same]) + rise) * d["mask"][i])
    r = ones([1, 0, 0], width=3, action=types.Action(token=array([[1, 2, 3], [1, 2, 4], [1, 5, 3]])))
    close(run(r, adv.tree_targets()).returns, [[1 / 3, 1 / 3, 1 / 2], [1 / 3, 1 / 3, 1 / 2], [1 / 3, 1 / 3, 0]])
    rise = get(r, adv.prefix_tree()) - get(r, CENTRE)
    close(rise, [[0, 1 / 6, 0.5], [0, 1 / 6, -0.5], [0, -1 / 3, 0]])
    close(rise.sum(axis=1), row(r, CENTRE))  # each row ends alone
    close(
        get(r.replace(action=types.Action(token=array(np.arange(9).reshape(3, 3)))), adv.branch_tree()),
        2 * get(r, CENTRE),
    )
    token = [[1, 1, 2], [1, 1, 3], [4, 4, 4], [4, 4, 4]]
    r = ones([1, 0, 0, 0], width=3, action=types.Action(token=array(token)), valid=[1.0, 1, 1, 0])
    top = (2 * 0.5 - 1 / 3 - 1 / 3) / np.sqrt(2)
    close(get(r, adv.branch_tree()), [[top, top, 2 - 1 / 3 - 0.5], [top, top, -1 / 3 - 0.5], [-2 / 3] * 3, [0] * 3])
    shared = r.replace(action=types.Action(token=array([[1, 1, 2], [1, 1, 3], [1, 4, 4], [1, 4, 4]])))
    close(get(shared, adv.branch_tree())[:, 0], [0] * 4)  # all rows pass through the root


@pytest.mark.full
def test_distinct_values_and_steps_count_once_and_mix_with_the_episode():
    a, mask = [[1.0, 1, 1], [3, 1 + 1e-7, 7], [5, 5, 9], [5, 0, 0]], [[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 1, 1]]
    r = record(mask, [0] * 4, agent=[0, 0, 1, 1], valid=[1.0, 1, 1, 0], advantage=a)
    close(get(r, adv.center_distinct()), [[-1, -1, -1], [1, -1, 0], [-2, -2, 2], [0, 0, 0]])
    mask, turn, paid = [[1, 1, 1, 0], [1] * 4], [[0, 0, 1, 1], [0, 1, 1, 1]], [[1.0, 1, 3, 9], [4, 0, 2, 3]]
    r = record(mask, [50, 70], turn=turn, token_reward=paid)
    a = np.array([[2 - 3, 2 - 3, 3 - 4, 0], [4 - 3, 5 - 4, 5 - 4, 5 - 4]])
    close(get(r, adv.center_steps()), a)
    z = (np.array([[2, 2, 3, 0], [4, 5, 5, 5]]) - 3.5) / np.std([2, 3, 4, 5], ddof=1)
    close(get(r, adv.zscore_steps(epsilon=0.0)), z * np.asarray(r.mask))
    close(get(r.replace(turn=None, extra={"tag": r.turn}), PIECES["by_tag"]), a)
    steps = np.array([1.0, 1, 3, 4, 2, 3])  # a step ends where a token is paid
    z = (steps - steps.mean()) / np.std(steps, ddof=1)
    behind = [[z[:3].sum(), z[1] + z[2], z[2], 0], [z[3:].sum(), z[4] + z[5], z[4] + z[5], z[5]]]
    close(get(r, adv.process_supervision(epsilon=0.0)), behind)
    with pytest.raises(ValueError, match="no token_reward"):
        get(r.replace(token_reward=None), adv.zscore_steps())
    episode = np.array([[-10], [10]]) * np.asarray(r.mask)  # it sees the rows' reward alone
    close(get(r.replace(advantage=r.mask * 99), adv.mix(*STEPS, 1.0, 0.5)), episode + 0.5 * a)
    close(get(r, adv.mix(*STEPS, 1.0, 0.0)), episode)
    close(get(r, adv.convex(*STEPS, 0.25)), 0.75 * episode + 0.25 * a)
    one = r.replace(turn=r.turn * 0, token_reward=r.reward[:, None] * ops.last_token(r.mask))
    close(get(one, adv.mix(*STEPS)), 2 * episode)  # one step: twice the centred reward
    r, piece = ones([1, 3], agent=[0, 1], value=[[0.5], [0.5]]), adv.mix(adv.role_baseline(2, 0.5), adv.gae())
    out, state = piece.apply(r, piece.init(), KEY)
    close(state[0], [0.5, 1.5])
    close(piece.apply(r, state, KEY)[0].advantage[:, 0], [0.5 + 0.5, 1.5 + 2.5])
    close(out.returns[:, 0], [1, 3])
