"""Reward and advantage pieces; prepare, weights, reductions."""

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
    penalty,
    prepare,
    ratio,
    reduce,
    reward,
    source,
    surrogate,
    weight,
)
from tests.support import batch
from tests.transforms.transforms_cases import KEY, MASK, apply, close, floats, one_row, record


def advantage_of(r, *pieces):
    chain = transforms.chain(*pieces)  # one program each: cheaper to compile than its many operations
    return np.asarray(jax.jit(lambda r: apply(chain, r).advantage)(r))


def rows(*values, mask=MASK):
    return np.asarray(values)[:, None] * np.asarray(mask)


# --- reward and advantage pieces ------------------------------------------------------


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


@pytest.mark.default_tier(1)
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


# --- prepare, weights, reductions -----------------------------------------------------


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
    rows = np.log([[0.25, 1.0], [0.25, 0.5], [1.0, 0.99], [0.1, 0.1]])  # perplexities 2, 2.8, 1.005, 10
    r = record(np.ones((4, 2)), (0,) * 4, (0,) * 4, proximal_logp=floats(rows), on_policy=floats([0, 0, 0, 1]))
    out = apply(prepare.perplexity_within(high=2.01), r, None)
    np.testing.assert_array_equal(out.mask, [[1, 1], [0, 0], [0, 0], [1, 1]])


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
