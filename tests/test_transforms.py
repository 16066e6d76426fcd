"""The kinds, the combinators and every piece on examples small enough to compute by hand."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import algorithms, transforms, types
from rljax.algorithms import interpreter, seams
from rljax.training import rows as rows_lib
from rljax.transforms import (
    advantage,
    after,
    define,
    ops,
    penalty,
    prepare,
    ratio,
    reduce,
    reward,
    schedule,
    source,
    surrogate,
    weight,
)
from tests import batch
from tests import test_algorithms as battery

KEY = jax.random.key(0)
MASK = [[1, 1, 0], [1, 0, 1], [1, 1, 1], [1, 0, 0], [1, 1, 0]]


def floats(x):
    return jnp.asarray(x, jnp.float32)


def record(mask=MASK, reward=(1, 0, 1, 1, 1), group=(5, 5, -2, -2, 9), **fields):
    """Return a rollout; by default a group with spread, one without and one of a single row."""
    arrays = {k: floats(v) if isinstance(v, list) else v for k, v in fields.items()}
    return types.Rollout(mask=floats(mask), reward=floats(reward), group=jnp.asarray(group), **arrays)


def one_row(mask, **fields):
    return record([mask], (fields.pop("reward", 0.0),), (0,), **{k: [v] for k, v in fields.items()})


def apply(piece, *records, state=None):
    """Apply a piece from its first state and return what it makes of the record."""
    out = piece.apply(*records, piece.init() if state is None else state, KEY)
    return out if isinstance(piece, types.LossTransform) else out[0]


def advantage_of(r, *pieces):
    chain = transforms.chain(*pieces)  # one program each: cheaper to compile than its many operations
    return np.asarray(jax.jit(lambda r: apply(chain, r).advantage)(r))


def rows(*values, mask=MASK):
    return np.asarray(values)[:, None] * np.asarray(mask)


def close(a, b, **tolerance):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), **{"rtol": 1e-5, "atol": 1e-6, **tolerance})


# --- kinds and combinators ----------------------------------------------------------------------


def test_needs_of_two_are_their_union():
    a = types.Needs(entropy=True, divergence=frozenset({"js"}), whole="episode")
    b = types.Needs(value=True, divergence=frozenset({"reverse_kl"}))
    union = types.Needs(entropy=True, value=True, divergence=frozenset({"js", "reverse_kl"}), whole="episode")
    assert a | b == b | a == union
    assert types.Needs() | a == a
    units = ("row", "episode", "group")
    for x, y in itertools.product(units, units):
        assert (types.Needs(whole=x) | types.Needs(whole=y)).whole == max(x, y, key=units.index)


def counter(name, needs=types.Needs()):
    """Return a piece that counts its uses in its state and writes its key's data into the record."""

    def run(r, count, key):
        data = jax.random.key_data(key)
        return r.replace(reward=r.reward * 10 + count, extra={**r.extra, name: data[None]}), count + 1

    return types.RolloutTransform(run, lambda: 1, lambda count, metrics: count + metrics["step"], needs, "reward", name)


def test_a_chain_runs_in_order_with_a_state_and_a_key_for_each_piece():
    a = counter("a", types.Needs(value=True))
    b = dataclasses.replace(counter("b", types.Needs(reference=True)), init=lambda: 7)
    chain = transforms.chain(a, b)
    assert chain.init() == (1, 7) and chain.spec == "chain(a, b)" and chain.seam == "reward"
    assert chain.needs == types.Needs(value=True, reference=True)
    out, state = chain.apply(record([[1]], (2.0,), (0,)), chain.init(), KEY)
    assert state == (2, 8) and out.reward.tolist() == [(2 * 10 + 1) * 10 + 7]
    for i, name in enumerate("ab"):
        np.testing.assert_array_equal(out.extra[name][0], jax.random.key_data(jax.random.fold_in(KEY, i)))
    assert (out.extra["a"] != out.extra["b"]).any()
    assert chain.observe(state, {"step": 5}) == (7, 13)


def test_a_chain_is_of_one_kind():
    with pytest.raises(ValueError, match="one kind only, got LossTransform, RolloutTransform"):
        transforms.chain(advantage.returns(), ratio.token())
    with pytest.raises(ValueError, match="at least one piece, or the kind"):
        transforms.chain()
    empty = transforms.chain(kind=types.LossTransform)
    loss = types.Loss(terms={"x": jnp.ones(1)})
    assert empty.init() == () and empty.apply(loss, None, None, (), KEY) is loss


def test_a_chain_of_loss_pieces_gathers_what_they_prepare():
    summed = penalty.entropy(reduce=reduce.sum_over_tokens())
    chain = transforms.chain(weight.fresh(), summed, penalty.kl())
    assert [p.seam for p in chain.statistics] == ["", "reduce"]


def test_stateless_lifts_a_function_of_the_records():
    double = define.stateless(types.RolloutTransform, lambda r: r.replace(reward=r.reward * 2))
    out, state = double.apply(record(), "state", KEY)
    assert state == "state" and out.reward.tolist() == [2, 0, 2, 2, 2]
    loss = define.stateless(types.LossTransform, lambda loss, r, s: loss.replace(log_ratio=r.reward))
    assert apply(loss, types.Loss(), record(), None).log_ratio.tolist() == [1, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("predicate", "chosen"),
    [
        ("on_policy", [[1, 1], [0, 0], [1, 1]]),
        ("correct", [[1, 1], [0, 0], [0, 0]]),
        ("wrong", [[0, 0], [1, 1], [1, 1]]),
        ("positive", [[1, 0], [0, 1], [0, 0]]),
        ("negative", [[0, 1], [0, 0], [0, 1]]),
    ],
)
def test_where_gives_each_token_the_terms_of_its_branch(predicate, chosen):
    def writes(ratio, **terms):
        full = {k: jnp.full((3, 2), float(v)) for k, v in terms.items()}
        return types.LossTransform(
            lambda loss, r, s, state, key: types.Loss(
                None if ratio is None else jnp.full((3, 2), ratio), terms=full, metrics=full
            )
        )

    r = record(
        [[1, 1]] * 3, (0.5, 0.0, -1.0), (0, 0, 0), on_policy=floats([1, 0, 1]), advantage=[[2, -1], [0, 3], [0, -4]]
    )
    c = np.asarray(chosen)
    out = apply(transforms.where(predicate, writes(3.0, policy=2, kl=5), writes(None, policy=7)), types.Loss(), r, None)
    for arrays in (out.terms, out.metrics):
        np.testing.assert_array_equal(arrays["policy"], np.where(c, 2, 7))
        np.testing.assert_array_equal(arrays["kl"], np.where(c, 5, 0))
    np.testing.assert_array_equal(out.log_ratio, np.where(c, 3.0, 0.0))


def test_where_keeps_the_states_and_keys_of_both_branches():
    steered = penalty.entropy(schedule.linear(1.0, 0.0, 2))
    both = transforms.where("correct", steered, penalty.entropy(4.0))
    state = both.observe(both.init(), {})
    scores = types.Scores(entropy=jnp.ones((5, 3)))
    term = apply(both, types.Loss(), record(), scores, state=state).terms["live_entropy"]
    close(term, np.where(np.array([1, 0, 1, 1, 1])[:, None], -0.5, -4.0) * np.ones((5, 3)))
    assert both.needs.entropy


# --- numbers that move --------------------------------------------------------------------------


def walk(controller, steps, metrics=None):
    state, out = controller.init(), []
    for _ in range(steps):
        out.append(float(controller.value(state)))
        state = controller.update(state, metrics or {})
    return out


def test_schedules_and_the_adaptive_coefficient():
    close(walk(schedule.linear(1.0, 0.0, 4), 6), [1, 0.75, 0.5, 0.25, 0, 0])
    close(walk(schedule.cosine(2.0, 0.0, 2), 4), [2, 1, 0, 0])
    # twice the target is clipped to +20 %, of 32 rows in a horizon of 100: a factor of 1.064
    metrics = {"kl": jnp.float32(1.0), "valid_rows": jnp.float32(32)}
    close(walk(schedule.adaptive_kl(0.1, 0.5, 100), 3, metrics), [0.1, 0.1064, 0.1064 * 1.064])
    metrics = {"kl": jnp.float32(0.45), "valid_rows": jnp.float32(50)}  # 10 % below: 1 - 0.1 * 0.5
    close(walk(schedule.adaptive_kl(0.1, 0.5, 100), 2, metrics), [0.1, 0.095])


UP = schedule.linear(0.0, 1.0, 2)


def steered(piece, read, *records):
    """Return what a piece does at its first three steps."""
    state, out = piece.init(), []
    for _ in range(3):
        out.append(read(apply(piece, *records, state=state)))
        state = piece.observe(state, {})
    return out


@pytest.mark.full
def test_a_schedule_may_stand_in_any_kind_of_piece():
    r = one_row([1], reward=1.0, advantage=[1.0], behaviour_logp=[-2.0])
    loss = types.Loss(log_ratio=jnp.log(floats([[1.8]])))
    scores = types.Scores(logp=floats([[-1.6]]), entropy=floats([[3.0]]))
    got = steered(surrogate.clip(0.2, UP), lambda x: float(x.terms["policy"][0, 0]), loss, r, scores)
    close(got, [-1.0, -1.5, -1.8])  # -A min(rho, 1 + high)
    got = steered(penalty.entropy(UP), lambda x: float(x.terms["live_entropy"][0, 0]), loss, r, scores)
    close(got, [0, -1.5, -3])
    got = steered(advantage.sign_weighted(UP), lambda x: float(x.advantage[0, 0]), r)
    close(got, [0, 0.5, 1])
    got = steered(reward.affine(scale=UP, bias=3.0), lambda x: float(x.reward[0]), r)
    close(got, [0, 2, 4])
    # k2 of 0.4 is 0.08: over a bound of 0, within one of 0.5
    piece = prepare.reject("k2", high=UP)
    got = steered(piece, lambda x: float(x.mask[0, 0]), r.replace(proximal_logp=scores.logp), scores)
    close(got, [0, 1, 1])
    got = steered(after.ema_reference(UP), lambda x: float(x["w"]), {"w": jnp.float32(8)}, {"w": jnp.float32(4)}, {})
    close(got, [4, 6, 8])


def test_what_a_piece_prepares_sees_the_same_moving_number():
    @define.constructor("penalty")
    def offset(size: types.Number = 0.0):
        def write(r, scores):
            return r.replace(extra={**r.extra, "offset": r.mask * size})

        def term(loss, r, scores):
            return loss.replace(terms={**loss.terms, "offset": r.extra["offset"] + size})

        piece = define.stateless(types.LossTransform, term)
        return dataclasses.replace(piece, statistics=(define.stateless(types.PrepareTransform, write),))

    algorithm = algorithms.compose(loss=[offset(UP)], reduce=reduce.sum_over_tokens())
    (o,), state, r = algorithm.objectives, interpreter.init(algorithm), record([[1, 1]], (0.0,), (0,))
    totals = []
    for _ in range(3):
        prepared, inner = interpreter.prepare_minibatch(o, r, None, state["objectives"][0], KEY)
        totals.append(float(interpreter.loss(o, prepared, types.Scores(), inner, KEY)[0]))
        state = interpreter.observe(algorithm, {**state, "objectives": (inner,)}, {})
    close(totals, [0, 2, 4])  # two tokens, the number counted in both places


def test_every_piece_of_an_algorithm_is_observed_once_a_step():
    def at(count):
        return int(jax.tree.leaves(count)[0])

    algorithm = algorithms.compose(
        advantage=[advantage.sign_weighted(schedule.linear(0, 1, 9))],
        loss=[ratio.token(), surrogate.clip(high=schedule.linear(0, 1, 9)), penalty.entropy(schedule.linear(0, 1, 9))],
        prepare=[prepare.reject(high=schedule.linear(0, 1, 9))],
        reduce=reduce.mean_over_tokens(),
        after=[after.ema_reference(schedule.linear(0, 1, 9)), after.reset_reference(2)],
    )
    state = interpreter.init(algorithm)
    for _ in range(3):
        state = interpreter.observe(algorithm, state, {})
    inner = state["objectives"][0]
    assert at(state["transforms"][0]) == at(inner["loss"][1]) == at(inner["loss"][2]) == at(inner["prepare"][0]) == 3
    assert at(state["after"][0]) == 3 and at(state["after"][1]) == 0  # counts uses, not observations


def test_a_number_of_a_source_that_fixes_shapes_cannot_move():
    with pytest.raises(ValueError, match="dynamic: oversample cannot be a schedule"):
        source.dynamic(UP)


# --- reward and advantage pieces ----------------------------------------------------------------


def test_affine_shifts_scales_and_clips():
    close(apply(reward.affine(2.0, -0.5, 0.8), record(reward=(1, 0, 0.5, 0.6, 9))).reward, [0.8, -0.8, 0, 0.2, 0.8])


def test_overlong_falls_from_the_limit_less_the_cache_to_the_limit():
    lengths = (3, 4, 5, 6, 8, 10)
    mask = (np.arange(10) < np.array(lengths)[:, None]).astype(float)
    r = apply(reward.overlong(8, 4, 2.0), record(mask, (1,) * 6, (0,) * 6))
    shaping = 2 * np.array([0, 0, -0.25, -0.5, -1, -1])
    close(r.parts["overlong"], shaping)
    close(r.reward, 1 + shaping)


def test_kl_in_the_reward_is_charged_at_each_token():
    r = one_row([1, 0, 1], raw_logp=[-1.0, 5.0, -2.0], ref_logp=[-1.2, -50.0, -1.6])
    close(apply(reward.kl("k1", 0.5), r).token_reward, [[-0.1, 0, 0.2]])
    close(apply(reward.kl("k2", 0.5), r).token_reward, [[-0.01, 0, -0.04]])
    more = r.replace(token_reward=floats([[1, 1, 1]]))
    close(apply(reward.kl("k1", 0.5), more).token_reward, [[0.9, 1, 1.2]])
    with pytest.raises(ValueError, match="no ref_logp"):
        apply(reward.kl(), record())


def test_returns_are_paid_at_the_last_token_and_discounted():
    r = record([[1, 1, 1], [1, 0, 1], [0, 0, 0]], (8, 8, 8), (0, 0, 0))
    close(advantage_of(r, advantage.returns(0.5)), [[2, 4, 8], [4, 0, 8], [0, 0, 0]])
    r = one_row([1, 0, 1], reward=8.0, token_reward=[1.0, 50.0, 7.0])
    close(advantage_of(r, advantage.returns(0.5)), [[1 + 15 / 2, 0, 15]])


def test_group_baselines_on_groups_with_spread_without_it_and_of_one():
    r = record()
    close(advantage_of(r, advantage.center_by_group()), rows(0.5, -0.5, 0, 0, 0))
    close(advantage_of(r, advantage.leave_one_out()), rows(1, -1, 0, 0, 0))
    a, b = advantage.center_by_group(), np.sqrt(0.5)  # ddof 1: (0.5^2 + 0.5^2) / 1
    close(advantage_of(r, a, advantage.scale_by_group(1e-6, 1)), rows(0.5 / b, -0.5 / b, 0, 0, 0))
    close(advantage_of(r, a, advantage.scale_by_group(1e-6, 0)), rows(1, -1, 0, 0, 0), rtol=1e-4)
    close(advantage_of(r, a, advantage.scale_by_group(0.5, 0)), rows(0.5, -0.5, 0, 0, 0))
    # all rewards: mean 0.8, variance (4 * 0.04 + 0.64) / 4 = 0.2
    close(advantage_of(r, a, advantage.scale_by_batch(0.0)), rows(*(np.array([0.5, -0.5, 0, 0, 0]) / np.sqrt(0.2))))
    # ten tokens: two of 0.5, two of -0.5; mean 0, variance 1 / 9
    close(advantage_of(r, a, advantage.whiten()), rows(1.5, -1.5, 0, 0, 0))


def test_invalid_rows_count_nowhere():
    r = record(reward=(1, 0, 1, 40, 1), valid=floats([1, 1, 1, 0, 1]))
    for piece in (advantage.center_by_group(), advantage.leave_one_out()):
        got = advantage_of(r, piece)
        np.testing.assert_array_equal(got[2:], 0)  # the group has one valid row left
        assert got[0, 0] > 0 > got[1, 0]
    # four valid rows: mean 0.75, variance (3 / 16 + 9 / 16) / 3 = 1 / 4
    a = advantage.center_by_group()
    close(advantage_of(r, a, advantage.scale_by_batch(0.0)), rows(1, -1, 0, 0, 0))
    close(advantage_of(r, a, advantage.whiten())[3], [0, 0, 0])
    # nine valid tokens, sum of squares 1, mean 0: variance 1 / 8
    close(advantage_of(r, a, advantage.whiten())[0, 0], 0.5 * np.sqrt(8))


@pytest.mark.parametrize("field", ["reward", "parts", "token_reward", "outcome"])
def test_a_row_whose_verdict_is_not_allowed_counts_as_if_it_were_absent(field):
    r = record([[1, 1, 0], [1, 0, 1], [1, 1, 1], [1, 1, 0]], (0,) * 4, (7, 7, 7, 7), parts={"p": jnp.zeros(4)})
    fields = {
        "reward": floats([1, 0, 40, 3]),
        "outcome": jnp.asarray([1, 0, 1, 2]),
        "parts": {"p": floats([1, 2, 3, 4])},
        "token_reward": floats([[0, 1, 0], [0, 0, 2], [0, 0, 0], [0, 0, 0]]),
    }
    wrong = {"outcome": fields["outcome"].at[2].set(17), "parts": {"p": fields["parts"]["p"].at[2].set(jnp.inf)}}
    wrong |= {name: fields[name].at[2].set(jnp.nan) for name in ("reward", "token_reward")}
    judged = rows_lib.judged(r, types.Verdict(**(fields | {field: wrong[field]})))
    assert judged.valid.tolist() == [1, 1, 0, 1] and int(judged.outcome[2]) == types.Outcome.CRASHED
    assert all(bool(jnp.isfinite(x).all()) for x in (judged.reward, judged.token_reward, judged.parts["p"]))
    keep = np.array([0, 1, 3])
    alone = jax.tree.map(lambda x: x[keep], rows_lib.judged(r, types.Verdict(**fields)))
    chain = (advantage.center_by_group(), advantage.scale_by_group(), advantage.whiten())
    got = advantage_of(judged, *chain)
    assert not got[2].any() and got.any()
    close(got[keep], advantage_of(alone, *chain))


def test_baselines_are_of_the_whole_reward_and_leave_token_rewards_in_place():
    r = record([[1, 1, 0], [1, 0, 1]], (1, 0), (3, 3), token_reward=[[2, 0, 9], [0, 9, 1]])
    # totals 3 and 1, mean 2; to go: [3, 1] and [1, ., 1]
    close(advantage_of(r, advantage.center_by_group()), [[1, -1, 0], [-1, 0, -1]])
    close(advantage_of(r, advantage.leave_one_out()), [[2, 0, 0], [-2, 0, -2]])


def test_sign_weighted_reads_zeros_and_ones_only():
    r = record(reward=(1, 0, 0.5, 1, 0))
    close(advantage_of(r, advantage.sign_weighted(0.1, 2.0)), rows(0.1, -2, 0, 0.1, -2))


def test_gae_by_hand():
    r = one_row([1, 1, 1], reward=8.0, value=[1.0, 2.0, 4.0])
    out = apply(advantage.gae(0.5, 0.5), r)
    # delta = [0 + 1 - 1, 0 + 2 - 2, 8 - 4]; A = [0.25 * 1, 0.25 * 4, 4]
    close(out.advantage, [[0.25, 1, 4]])
    close(out.returns, [[1.25, 3, 8]])
    with pytest.raises(ValueError, match="no value"):
        apply(advantage.gae(), record())


# --- prepare, weights, reductions ---------------------------------------------------------------


def test_prepare_pieces_take_rows_and_tokens_out_of_the_mask():
    r = record(reward=(1, 0, 0.5, -1, 1), finish=jnp.array([0, 1, 1, 0, 1]))
    mask = np.asarray(MASK)
    np.testing.assert_array_equal(apply(prepare.keep("correct"), r, None).mask, mask * [[1], [0], [1], [0], [1]])
    np.testing.assert_array_equal(apply(prepare.keep("wrong"), r, None).mask, mask * [[0], [1], [0], [1], [0]])
    np.testing.assert_array_equal(apply(prepare.drop_truncated(), r, None).mask, mask * [[0], [1], [1], [0], [1]])
    proximal = [-1.5, -2.5, -np.inf, 0.5]  # k2: 0.125, 1.125, ., 1.125
    r = one_row([1, 1, 0, 1], behaviour_logp=[-1.0, -1.0, -1.0, -1.0], proximal_logp=proximal)
    out = apply(prepare.reject("k2", high=0.5), r, None)
    np.testing.assert_array_equal(out.mask, [[1, 0, 0, 0]])
    np.testing.assert_array_equal(out.extra["rejected"], [[0, 1, 0, 1]])


def test_weights_multiply_the_terms_before_them_and_are_constants():
    r = one_row([1, 1, 0], proximal_logp=[0.0, 0.0, np.inf], behaviour_logp=list(-np.log([3.0, 1.5, 1.0])))
    before = types.Loss(terms={"policy": floats([[10, 10, 10]])})
    out = apply(weight.truncated_importance(2.0), before, r, types.Scores(logp=jnp.zeros((1, 3))))
    close(out.terms["policy"], [[20, 15, 10]])  # the masked token's infinity is not seen

    def total(logp):  # without a proximal policy it is the live one, held constant
        live = r.replace(proximal_logp=None)
        return apply(weight.truncated_importance(), before, live, types.Scores(logp=logp)).terms["policy"].sum()

    np.testing.assert_array_equal(jax.grad(total)(jnp.zeros((1, 3))), 0)
    r = one_row([1, 1, 1, 0], advantage=[2.0, -1.0, 0.0, 0.0])
    out = apply(weight.by_sign(3.0, 0.5), types.Loss(terms={"policy": jnp.ones((1, 4))}), r, None)
    np.testing.assert_array_equal(out.terms["policy"], [[3, 0.5, 0.5, 0.5]])


@pytest.mark.parametrize(("lag", "kept"), [(0, [[1, 0], [0, 1]]), (1, [[1, 1], [0, 1]]), (9, [[1, 1], [1, 1]])])
def test_fresh_drops_stale_tokens_from_the_policy_term_only(lag, kept):
    r = record([[1, 1], [1, 1]], (0, 0), (0, 0), version=jnp.array([[5, 4], [2, 5]]))
    algorithm = algorithms.compose(
        loss=[surrogate.likelihood(), weight.fresh(lag), penalty.entropy(1.0)], reduce=reduce.sum_over_tokens()
    )
    (o,), state = algorithm.objectives, interpreter.init(algorithm)["objectives"][0]
    scores = types.Scores(logp=floats([[-1, -2], [-4, -8]]), entropy=jnp.ones((2, 2)))
    prepared, state = interpreter.prepare_minibatch(o, r, scores, state, KEY)
    _, metrics = interpreter.loss(o, prepared, scores, state, KEY)
    close(metrics["loss/policy"], np.sum(np.array([[1, 2], [4, 8]]) * kept))
    close(metrics["loss/live_entropy"], -4)


def test_reductions_by_hand():
    mask = np.asarray(MASK, float)  # ten tokens in rows of 2, 2, 3, 1, 2
    r = record(valid=floats([1, 1, 1, 0, 1]))  # nine in four rows
    counted = mask * np.array([1, 1, 1, 0, 1])[:, None]

    def coefficient(piece, r=r):
        return np.asarray(apply(piece, r, None).coefficient["common"])

    close(coefficient(reduce.mean_over_tokens()), counted / 9)
    close(coefficient(reduce.mean_over_rows()), counted / np.array([2, 2, 3, 1, 2])[:, None] / 4)
    close(coefficient(reduce.mean_over_rows_of_sums()), counted / 4)
    close(coefficient(reduce.fixed_length(6)), counted / 24)
    close(coefficient(reduce.fixed_length()), counted / 12)  # the record is 3 wide
    close(coefficient(reduce.sum_over_tokens()), counted)
    for mean in (reduce.mean_over_tokens(), reduce.mean_over_rows()):
        close(coefficient(mean).sum(), 1)
    with_gap = record([[1, 1, 0], [0, 0, 0]], (0, 0), (0, 0))  # a row without tokens is not a row
    close(coefficient(reduce.mean_over_rows(), with_gap), [[0.5, 0.5, 0], [0, 0, 0]])
    for name in transforms.pieces("reduce"):
        (piece,) = seams._edit("reduce", f"{name}({batch.ARGUMENTS.get(name, '')})", ())
        ids = jnp.zeros(1, jnp.int32)
        nothing = coefficient(piece, record([[0, 0]], (0,), (0,), episode=ids, turn=jnp.zeros((1, 2), jnp.int32)))
        np.testing.assert_array_equal(nothing, 0, err_msg=name)


def test_a_penalty_may_have_a_reduction_of_its_own():
    r = record([[1, 1, 1], [1, 0, 0]], (0, 0), (0, 0))
    scores = types.Scores(logp=jnp.zeros((2, 3)), entropy=floats([[1, 1, 1], [5, 9, 9]]))
    algorithm = algorithms.compose(
        loss=[
            penalty.entropy(1.0, reduce.mean_over_rows()),  # (1 + 5) / 2
            penalty.entropy(10.0, reduce.sum_over_tokens()),  # 8
            penalty.entropy(100.0),  # 8 / 4
            penalty.entropy(100.0),
        ],
        reduce=reduce.mean_over_tokens(),
    )
    (o,), state = algorithm.objectives, interpreter.init(algorithm)["objectives"][0]
    prepared, state = interpreter.prepare_minibatch(o, r, scores, state, KEY)
    value, metrics = interpreter.loss(o, prepared, scores, state, KEY)
    close(value, -(3 + 80 + 200 + 200))
    close(metrics["live_entropy"], 2)


def test_a_piece_that_asks_for_what_is_not_there_says_so():
    r, loss = record(), types.Loss()
    empty, scores = types.Scores(), types.Scores(logp=jnp.zeros((5, 3)))
    for piece, given, message in (
        (surrogate.clip(), scores, "no advantage"),
        (surrogate.likelihood(), empty, "no logp"),
        (surrogate.value_error(), scores, "needs scores.value"),
        (surrogate.value_histogram((0.0, 1.0)), scores, "needs scores.value_logits"),
        (surrogate.step_labels(), scores, "needs scores.process"),
        (ratio.token(), empty, "ratio: the scores have no logp"),
        (ratio.token("behaviour"), scores, "anchor='behaviour', but the rollout has no such"),
        (penalty.kl(), scores, "no ref_logp"),
        (penalty.entropy(), scores, "no entropy"),
        (weight.truncated_importance(), scores, "no behaviour_logp"),
    ):
        with pytest.raises(ValueError, match=message):
            apply(piece, loss, r, given)
    with pytest.raises(ValueError, match="no ratio; put a ratio piece before it"):
        apply(surrogate.clip(), loss, r.replace(advantage=r.mask), scores)
    for piece, message in ((prepare.reject(), "no behaviour_logp"), (prepare.drop_truncated(), "no finish reason")):
        with pytest.raises(ValueError, match=message):
            apply(piece, r, None)


def test_surrogates_by_hand():
    r = one_row([1] * 4, advantage=[2.0, 2.0, -2.0, -2.0])
    loss = types.Loss(log_ratio=jnp.log(floats([[0.5, 1.5, 0.5, 5.0]])))
    scores = types.Scores(logp=floats([[-1, -2, -3, -4]]))

    def term(piece):
        return apply(piece, loss, r, scores)

    close(term(surrogate.reinforce()).terms["policy"], [[2, 4, -6, -8]])
    close(term(surrogate.likelihood()).terms["policy"], [[1, 2, 3, 4]])
    close(term(surrogate.unclipped()).terms["policy"], [[-1, -3, 1, 10]])
    clipped = term(surrogate.clip(0.2, 0.3))
    close(clipped.terms["policy"], [[-1, -2.6, 1.6, 10]])
    np.testing.assert_array_equal(clipped.metrics["clipped"], [[0, 1, 1, 0]])
    close(term(surrogate.clip(0.2, 0.3, 3.0)).terms["policy"], [[-1, -2.6, 1.6, 6]])  # no more than 3 * 2


def test_ratios_by_hand():
    r = one_row([1, 0, 1], proximal_logp=[-1.0, -np.inf, -1.0], behaviour_logp=[-2.0, -np.inf, -1.0])
    scores = types.Scores(logp=floats([[-0.5, 7.0, -1.5]]))
    close(apply(ratio.token(), types.Loss(), r, scores).log_ratio, [[0.5, 0, -0.5]])
    close(apply(ratio.token("behaviour"), types.Loss(), r, scores).log_ratio, [[1.5, 0, -0.5]])
    close(apply(ratio.sequence("behaviour"), types.Loss(), r, scores).log_ratio, [[0.5, 0, 0.5]])
    out = apply(ratio.token(), types.Loss(), r.replace(proximal_logp=None), scores)
    close(out.log_ratio, [[0, 0, 0]])  # the live policy, held constant: the value is 1, the gradient is not 0
    slope = jax.grad(
        lambda x: apply(
            ratio.token(), types.Loss(), r.replace(proximal_logp=None), types.Scores(logp=x)
        ).log_ratio.sum()
    )(scores.logp)
    np.testing.assert_array_equal(slope, [[1, 0, 1]])


def test_after_pieces_move_the_reference():
    reset, metrics = after.reset_reference(2), {}
    reference, state, seen = jnp.float32(0), reset.init(), []
    for step in range(1, 5):
        reference, state = reset.apply(reference, jnp.float32(step), metrics, state, KEY)
        seen.append(float(reference))
    assert seen == [0, 2, 2, 4]
    assert reset.needs.reference and after.ema_reference().needs.reference


def test_a_reference_moves_only_where_the_policy_does_better_than_at_its_last_move():
    piece, rewards = after.reset_reference_if_better(2, margin=0.1), (0.5, 0.3, 0.6, 0.4, 0.4, 0.6, 0.1, 0.2, 0.5, 0.7)
    reference, state, seen = jnp.float32(0), piece.init(), []
    for step, mean in enumerate(rewards, start=1):
        metrics = {"reward": jnp.float32(mean)}
        reference, state = piece.apply(reference, jnp.float32(step), metrics, state, KEY)
        seen.append(float(reference))
    # means of two: 0.4, to exceed by 0.1; 0.5, which is not above 0.5; 0.5; 0.15; 0.6
    assert seen == [0, 0, 0, 0, 0, 0, 0, 0, 0, 10]
    with pytest.raises(ValueError, match="no metric 'accuracy'; a step has reward"):
        after.reset_reference_if_better(metric="accuracy").apply(0, 0, metrics, state, KEY)


@pytest.mark.full
def test_dynamic_prefers_groups_with_spread_and_fills_up_with_invalid_rows():
    r = record([[1]] * 6, (1, 1, 0, 1, 0, 0), (8, 8, 3, 3, 4, 4), index=jnp.arange(6))
    piece = source.dynamic(3)
    out, pool = piece.select(r, (), 4, KEY)
    assert piece.oversample == 3 and pool == ()
    assert out.index.tolist() == [2, 3, 0, 1] and out.valid.tolist() == [1, 1, 0, 0]
    tenths = record([[1]] * 10, (0.1,) * 10, (0,) * 10)  # the mean of equal numbers may be off in the last bit
    assert piece.select(tenths, (), 10, KEY)[0].valid.tolist() == [0] * 10


# --- the functions underneath -------------------------------------------------------------------


@pytest.mark.full
def test_kl_estimators_against_enumeration():
    r = np.random.default_rng(0)
    theta, phi = floats(r.normal(size=5)), floats(r.normal(size=5))
    q = jax.nn.log_softmax(phi)

    def expected(estimator, x, value=True):
        """Return E over v ~ p of k(log p(v) - log q(v)), the samples not differentiated."""
        p = jax.nn.log_softmax(x)
        return jnp.sum(jax.lax.stop_gradient(jnp.exp(p)) * ops.kl_estimate(estimator, p - q))

    def reverse(x):
        p = jax.nn.log_softmax(x)
        return jnp.sum(jnp.exp(p) * (p - q))

    def forward(x):
        return jnp.sum(jnp.exp(q) * (q - jax.nn.log_softmax(x)))

    gradient = {e: jax.grad(lambda x, e=e: expected(e, x))(theta) for e in ops.ESTIMATORS}
    close(expected("k1", theta), reverse(theta))
    close(expected("k3", theta), reverse(theta))
    close(gradient["k1"], np.zeros(5))
    close(gradient["k2"], jax.grad(reverse)(theta))
    close(gradient["k3"], jax.grad(forward)(theta))
    assert np.abs(np.asarray(gradient["k2"] - gradient["k3"])).max() > 0.05  # the two do differ here
    d = jnp.linspace(-3, 3, 13)
    assert (ops.kl_estimate("k3", d) >= 0).all() and ops.kl_estimate("k3", jnp.zeros(1))[0] == 0
    close(ops.kl_estimate("abs", d), np.abs(d))
    assert np.isfinite(ops.kl_estimate("k3", floats([-1e4, 1e4]))).all()
    with pytest.raises(ValueError, match="choose one of k1, k2, k3, abs"):
        ops.kl_estimate("k4", d)


def test_gae_and_reward_to_go_equal_their_definitions():
    r = np.random.default_rng(1)
    mask = (r.random((4, 7)) < 0.6).astype(float)
    mask[3] = 0
    reward_, value = r.normal(size=(2, 4, 7))
    gamma, lam = 0.9, 0.7
    to_go, estimate = np.zeros((4, 7)), np.zeros((4, 7))
    for i in range(4):
        at = np.flatnonzero(mask[i])
        x, v = reward_[i, at], np.append(value[i, at], 0.0)
        delta = [x[k] + gamma * v[k + 1] - v[k] for k in range(len(at))]
        for k, t in enumerate(at):
            to_go[i, t] = sum(gamma**j * x[k + j] for j in range(len(at) - k))
            estimate[i, t] = sum((gamma * lam) ** j * delta[k + j] for j in range(len(at) - k))
    close(ops.reward_to_go(floats(reward_), floats(mask), gamma), to_go)
    close(ops.gae(floats(reward_), floats(value), floats(mask), gamma, lam), estimate)


def test_segments_take_any_ids():
    ids = jnp.array([2**31 - 1, -(2**31), 0, 2**31 - 1, -1, -(2**31)])
    x, valid = floats([1, 2, 3, 5, 8, 20]), floats([1, 1, 1, 1, 0, 1])
    close(ops.segment_total(x, ids), [6, 22, 3, 6, 8, 22])
    close(ops.segment_mean(x, ids, valid), [3, 11, 3, 3, 0, 11])
    close(ops.segment_std(x, ids, valid), [2, 9, 0, 2, 0, 9])
    close(ops.segment_std(x, ids, valid, ddof=1), [np.sqrt(8), np.sqrt(162), 0, np.sqrt(8), 0, np.sqrt(162)])


def test_masked_statistics():
    x, mask = floats([1, 5, np.inf, 3]), floats([1, 1, 0, 1])
    close(ops.masked_mean(x, mask), 3)
    close(ops.masked_std(x, mask), np.sqrt(8 / 3))
    close(ops.masked_std(x, mask, ddof=1), 2)
    assert ops.masked_mean(x, mask * 0) == 0 and ops.masked_std(x, mask * 0) == 0
    np.testing.assert_array_equal(ops.last_token(floats([[1, 0, 1, 0], [0, 0, 0, 0]])), [[0, 0, 1, 0], [0, 0, 0, 0]])


# --- a piece nobody foresaw, and strict types ---------------------------------------------------


def test_a_penalty_without_a_coefficient_is_added_as_it_is():
    @define.penalty
    def plain(loss, r, scores):
        return r.reward[:, None] * r.mask

    r, scores = record([[1, 1]], (3,), (4,)), types.Scores(logp=floats([[-1, -1]]))
    algorithm = algorithms.compose(loss=[plain()], reduce=reduce.sum_over_tokens())
    (o,), state = algorithm.objectives, interpreter.init(algorithm)["objectives"][0]
    prepared, state = interpreter.prepare_minibatch(o, r, scores, state, KEY)
    assert interpreter.loss(o, prepared, scores, state, KEY)[0] == 2 * 3.0


@pytest.mark.full
def test_a_loss_of_pairs_fits_the_seams():
    @define.surrogate(needs=types.Needs(whole="group"), term="pair")
    def pairs(loss, r, scores):
        """-log sigmoid of the difference of a group's two sequence log-probs, charged to the first row."""
        total = jnp.sum(scores.logp * r.mask, axis=1)
        sign = jnp.where(r.reward > 0, 1.0, -1.0)
        margin = ops.segment_total(total * sign, r.group)
        return -jax.nn.log_sigmoid(margin)[:, None] * (r.reward > 0)[:, None] * ops.last_token(r.mask)

    algorithm = algorithms.compose(loss=[pairs()], reduce=reduce.sum_over_tokens())
    assert interpreter.needs(algorithm).whole == "group"
    (o,), state = algorithm.objectives, interpreter.init(algorithm)["objectives"][0]
    r = record([[1, 1], [1, 0], [1, 1], [1, 1]], (1, 0, 0, 1), (4, 4, 6, 6))
    scores = types.Scores(logp=floats([[-1, -1], [-3, 0], [-1, -2], [-2, -2]]))
    prepared, state = interpreter.prepare_minibatch(o, r, scores, state, KEY)
    whole = interpreter.loss(o, prepared, scores, state, KEY)[0]
    close(whole, np.log1p(np.exp(-1)) + np.log1p(np.exp(1)))  # margins -2 + 3 and -4 + 3
    halves = [jax.tree.map(lambda x, i=i: x[i : i + 2], (prepared, scores)) for i in (0, 2)]
    close(sum(interpreter.loss(o, *half, state, KEY)[0] for half in halves), whole)


@pytest.mark.default_tier("grpo", "ppo", "dpo")
@pytest.mark.parametrize("name", algorithms.TABLE)
def test_recipes_promote_no_types_silently(name):
    algorithm = battery.recipe(name)

    def value(scores, rollout, number):
        return battery.total(algorithm, rollout, scores)[number]

    with jax.numpy_dtype_promotion("strict"):
        rollout, scores = batch.records(batch.arrays(name=name))
        for number in range(len(algorithm.objectives)):
            out = jax.eval_shape(lambda s, r, n=number: jax.value_and_grad(value)(s, r, n), scores, rollout)
            assert {x.dtype for x in jax.tree.leaves(out)} == {jnp.dtype("float32")}


@pytest.mark.default_tier("weight", "advantage")
@pytest.mark.parametrize("seam", ["reward", "advantage", "prepare", *transforms.LOSS_SEAMS, "reduce"])
def test_pieces_promote_no_types_silently(seam):
    rollout, scores = batch.records(batch.arrays(name=batch.PAID_AT_TOKENS[0]))
    pair = {"preference": jnp.zeros_like(rollout.reward), "margin": jnp.zeros_like(rollout.reward)}
    rollout = rollout.replace(advantage=rollout.value, returns=rollout.value, extra={**rollout.extra, **pair})
    scores = scores.replace(divergence=dict.fromkeys(ops.DIVERGENCES, scores.entropy))
    scores = scores.replace(value_logits=jnp.zeros((*rollout.mask.shape, 3)))
    shape = rollout.mask.shape
    before = types.Loss(log_ratio=jnp.zeros(shape), terms={"policy": jnp.zeros(shape)})
    records = {"reward": (rollout,), "advantage": (rollout,), "prepare": (rollout, scores), "reduce": (rollout, scores)}
    with jax.numpy_dtype_promotion("strict"):
        for name in transforms.pieces(seam):
            (piece,) = seams._edit(seam, f"{name}({batch.ARGUMENTS.get(name, '')})", ())
            if isinstance(piece, types.LossTransform):
                statistics = transforms.chain(*piece.statistics, kind=types.PrepareTransform)
                prepared = apply(statistics, rollout, scores)
                out = jax.eval_shape(lambda p=piece, r=prepared: apply(p, before, r, scores))
            else:
                out = jax.eval_shape(lambda p=piece: apply(p, *records[seam]))
            dtypes = {x.dtype for x in jax.tree.leaves(out)}
            assert dtypes <= {jnp.dtype("float32"), jnp.dtype("int32")}, name
