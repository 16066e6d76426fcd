"""The reward seam: identities, numbers worked out by hand, and inputs at the edge."""

import functools
import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import transforms, types
from rljax.transforms import reward, trajectories
from tests.support import batch

PIECES = transforms.pieces("reward")
CALLS = {
    "affine": {"scale": 2.0},
    "brevity_if_solved": {"limit": 6.0},
    "budget_triangle": {"budget": 4.0},
    "by_domain": {"scale": (0.2, 1.0)},
    "clip_process": {"eta": 0.1},
}
CALLS |= {"collective_vote": {"models": 2}, "cosine_length": {"limit": 6.0}, "gated": {"threshold": 0.5}}
CALLS |= {"decoupled": {"weights": (("format", 1.0), ("exploration", 0.5))}, "outcome": {"wrong": -1.0}}
CALLS |= {"in_domains": {"domains": (1,), "piece": PIECES["affine"](scale=2.0)}}
CALLS |= {"exponential_distance": {"part": "exploration", "alpha": 2.0}, "only_turn": {"turn": 1}}
CALLS |= {"charge": {"name": "exploration", "price": 0.8}}
CALLS |= {"mix_part": {"name": "exploration", "alpha": 0.8}, "overlong": {"limit": 4, "cache": 2}}
CALLS |= {"relative_length": {"turns": 0.2}, "repetition": {"ngram": 2}, "require": {"part": "format"}}
CALLS |= {"sibling_cosine": {"fallback": 3.0}, "solve_rate_length": {"share": 0.5}}
CALLS |= {"tail_repetition": {"period_limit": 2}}


floats = functools.partial(jnp.asarray, dtype=jnp.float32)


def paid(piece, r):
    """Return what a piece may write: (reward, token rewards, the part of overlong)."""
    # one program is cheaper to compile than its many operations
    r = jax.jit(lambda r: piece.apply(r, piece.init(), jax.random.key(0))[0])(r)
    return r.reward, r.token_reward, r.parts.get("overlong")


def arguments(name):
    """Return a call's arguments by name: its defaults, and those of CALLS."""
    return {k: p.default for k, p in inspect.signature(PIECES[name]).parameters.items()} | CALLS.get(name, {})


def record(reward, group=None, lengths=None, mask=None, token=None, **fields):
    """Return a rollout of rows of these lengths, by default one group of rows of one token."""
    lengths = np.ones(len(reward), int) if lengths is None else np.asarray(lengths)
    mask = np.arange(max(lengths.max(), 1)) < lengths[:, None] if mask is None else mask
    group = np.zeros(len(reward), int) if group is None else group
    deep = {k: {n: floats(v) for n, v in fields.pop(k, {}).items()} for k in ("parts", "extra")}
    arrays = {k: jnp.asarray(v) if np.asarray(v).dtype.kind == "i" else floats(v) for k, v in fields.items()}
    action = None if token is None else types.Action(token=jnp.asarray(token))
    return types.Rollout(floats(mask), floats(reward), jnp.asarray(group), action=action, **deep, **arrays)


def got(piece, *rows, **fields):
    return np.asarray(jax.jit(lambda r: paid(piece, r)[0])(record(*rows, **fields)))


def tokens(piece, *rows, **fields):
    return np.asarray(jax.jit(lambda r: paid(piece, r)[1])(record(*rows, **fields)))


def close(a, b):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-6)


@pytest.mark.default_tier(8)
@pytest.mark.parametrize("name", PIECES)
def test_rows_that_do_not_count_move_nothing_and_the_order_of_rows_is_free(name):
    known = arguments(name)
    numbers = {k: v for k, v in known.items() if isinstance(v, float)}
    run = jax.jit(lambda r, numbers: paid(PIECES[name](**(known | numbers)), r))  # numbers are traced
    d = batch.arrays(name="mars")  # a batch with token rewards
    rollout, _ = batch.records(d)
    rollout = rollout.replace(token_reward=rollout.token_reward * rollout.mask)
    before = [None if x is None else np.asarray(x) for x in run(rollout, numbers)]
    other = rollout.replace(
        mask=rollout.mask.at[8].set(0.0).at[8, 2].set(1.0),
        reward=rollout.reward.at[8].set(-70.0),
        outcome=rollout.outcome.at[8].set(2),
        behaviour_logp=rollout.behaviour_logp.at[8].set(0.0),
        token_reward=rollout.token_reward.at[8].set(50.0),
        parts={k: v.at[8].set(99.0) for k, v in rollout.parts.items()},
    )
    order = np.random.default_rng(1).permutation(batch.B)
    moved = jax.tree.map(lambda x: x[order], rollout)
    for a, b, c in zip(before, run(other, numbers), run(moved, numbers), strict=True):
        assert a is None or np.allclose(a[d["valid"] > 0], b[d["valid"] > 0], atol=1e-6)
        assert a is None or np.allclose(a[order], c, atol=1e-6)
    # equal rows; only empty rows; no row that counts; groups of one row; tokens that could hardly be drawn
    edge = [jax.tree.map(lambda x: jnp.broadcast_to(x[:1], x.shape), rollout), rollout.replace(mask=rollout.mask * 0)]
    edge += [rollout.replace(valid=rollout.valid * 0), rollout.replace(group=jnp.arange(batch.B))]
    edge += [other, rollout.replace(behaviour_logp=rollout.behaviour_logp - 200)]
    assert all(np.all(np.isfinite(x)) for r in edge for x in run(r, numbers) if x is not None)


@pytest.mark.parametrize("name", PIECES)
def test_pieces_keep_the_type_of_what_they_read_and_say_what_they_lack(name):
    piece = PIECES[name](**arguments(name))
    assert piece.seam == "reward" and piece.spec == transforms.call(name, arguments(name))
    d = batch.arrays(name="mars")
    for dtype in (jnp.float32, jnp.float64):
        with jax.enable_x64(dtype == jnp.float64), jax.numpy_dtype_promotion("strict"):
            rollout, _ = batch.records(d, dtype)
            out = jax.eval_shape(lambda r: paid(piece, r), rollout)
            assert {x.dtype for x in jax.tree.leaves(out)} == {jnp.dtype(dtype)}
    rollout, _ = batch.records(d)
    for kind, names in (("part", piece.needs.parts), ("extra", piece.needs.extra)):
        for missing in names:
            field = "parts" if kind == "part" else kind
            bare = rollout.replace(**{field: {k: v for k, v in getattr(rollout, field).items() if k != missing}})
            with pytest.raises(ValueError, match=f"no {kind} '{missing}'"):
                jax.eval_shape(lambda r: paid(piece, r), bare)


def test_missing_fields_are_named():
    for name, piece in {"outcome": reward.outcome(), "finish": reward.truncated(), "turn": reward.only_turn(1)}.items():
        with pytest.raises(ValueError, match=f"reward: the rollout has no {name}"):
            paid(piece, record([1.0], token_reward=[[1.0]]))


def test_outcomes_and_parts():
    outcome, part = [0, 1, 2], {"parts": {"format": [1, 0, 0.5]}}
    close(got(reward.outcome(), [9, 9, 9], outcome=outcome), [0, 1, 0])
    close(got(reward.outcome(1.0, -1.0, -2.0), [9, 9, 9], outcome=outcome), [-1, 1, -2])
    close(got(reward.unparseable(), [9, 8, 7], outcome=outcome), [9, 8, -0.5])
    close(got(reward.add_parts((("format", 1.0), ("format", 0.5))), [1, 1, 0], **part), [2.5, 1, 0.75])
    close(got(reward.require("format", 0.5, -1.0), [3, 4, 5], **part), [3, -1, 5])
    close(got(reward.mix_part("format", 0.75), [1, 1, 0], **part), [1, 0.75, 0.125])
    close(got(reward.charge("format", 2.0), [1, 1, 0], **part), [-1, 1, -1])
    close(got(reward.exponential_distance("format", 2.0), [9, 9, 9], **part), np.exp([-2.0, 0, -1]))
    solver = {"outcome": outcome, "parts": {"solver_success": [0, 0.25, 0.5]}}
    close(got(reward.learnability(), [9, 9, 9], **solver, agent=[0, 0, 0]), [-0.5, 0.75, -1])
    close(got(reward.learnability(), [9, 8, 7], **solver, agent=[0, 1, 1]), [-0.5, 8, 7])  # solvers keep theirs
    always = {"outcome": [1], "parts": {"solver_success": [1]}}
    close(got(reward.learnability(), [9], **always, agent=[0]), [-0.5])  # nothing is learned from it either


def test_a_domain_has_a_reward_of_its_own():
    rows = record(
        [1, 2, 3, 4.0], group=[0, 0, 1, 1], domain=[1, 1, 0, 0], outcome=[1, 0, 1, 0], token_reward=np.eye(4)[:, :1]
    )
    scorer = types.Scores(reward=floats([0.5, jnp.nan, jnp.nan, 7]))
    rows = rows.replace(scores={"reward": scorer})

    def told(domains, piece):
        piece = PIECES["in_domains"](domains, piece)
        return piece.apply(rows, piece.init(), jax.random.key(0))[0]

    out = told((1,), reward.learned())
    close(out.reward, [0.5, 0, 3, 4])
    assert [*out.valid] == [1, 0, 1, 1]  # no score counts in the domain that no model pays
    close(
        trajectories.total(told((0,), reward.outcome(5.0, 6.0))), [2, 2, 5, 6]
    )  # the others keep what tokens were paid
    whole = told((0, 1), reward.affine())
    close(trajectories.total(whole), trajectories.total(reward.affine().apply(rows, (), jax.random.key(0))[0]))


def test_decoupled_scores_each_part_by_itself():
    fields, z = {"group": [1, 1, 0, 0], "parts": {"a": [1, 0, 5, 5], "b": [0, 4, 1, 3]}}, math.sqrt(0.5)
    close(got(reward.decoupled((("a", 1.0), ("b", 0.5)), 0.0), [9] * 4, **fields), [z / 2, -z / 2, -z / 2, z / 2])
    close(got(reward.decoupled((("b", 1.0),), 0.0, 0), [9] * 4, **fields), [-1, 1, -1, 1])


def test_votes():
    fields = {"group": [0, 0, 0, 0, 4, 4, 4], "valid": [1.0, 1, 1, 1, 1, 1, 0], "agent": [0, 0, 1, 1, 0, 1, 1]}
    fields["parts"] = {"answer": [7, 7, 3, 8, 5, 2, 5]}
    for piece in (reward.majority_vote(), reward.collective_vote(1)):
        close(got(piece, [9] * 7, **fields), [1, 1, 0, 0, 0, 1, 0])  # 2 is below 5, whose second vote does not count
    # models agree with themselves by 2/3 and 1: answer 1 has 2 * 2/3, answer 2 has 1 * 2/3 + 1 * 1
    fields = {"agent": [0, 0, 0, 1], "parts": {"answer": [1, 1, 2, 2]}}
    close(got(reward.collective_vote(2), [9] * 4, **fields), [0, 0, 1, 1])
    close(got(reward.majority_vote(), [9] * 4, **fields), [1, 1, 0, 0])


def test_the_voting_game_sums_to_zero():
    fields = {"group": [0, 0, 0, 3, 3, 3, 3], "agent": [0, 1, 2, 1, 0, 1, 1], "parts": {"votes": [2, 1, 0, 1, 0, 0, 2]}}
    expected = [-0.3, 0.15 - 0.25, 0.15 + 0.25, -1 / 15, 0.2, 0.5 - 1 / 15, -0.5 - 1 / 15]
    close(got(reward.zero_sum_votes(0.2, 0.5), [9] * 7, **fields), expected)  # Psi = 2 - 0.5, 0 - 1
    fields["agent"] = [0, 0, 1, 1, 1, 1, 1]  # two spies: Psi = 1.5 - 0; no spy: only the civilians' votes count
    close(got(reward.zero_sum_votes(0.2, 0.5), [9] * 7, **fields), [-0.3, -0.3, 0.6, -0.125, 0.375, 0.375, -0.625])


def test_confidence_is_charged_to_wrong_rows_only():
    logp = np.log([[0.5, 0.5], [0.1, 0.4], [0.25, 1.0], [0.3, 0.3], [0.6, 0.6]])
    fields = {"group": [0, 0, 0, 2, 2], "lengths": [2] * 5, "behaviour_logp": logp}
    # c = 0.5, 0.2, 0.5; mean(r / c) = 2 / 3, so D = max(1.5, 1); all wrong: D = 1.2 with c = 0.3, 0.6
    expected = [1, -0.2 / 1.3 / 3, -0.5 / 1.0 / 3, -0.3 / 0.9 / 2, -0.5]
    close(got(reward.confidence_penalty(), [1, 0, 0, 0, 0], **fields), expected)
    close(got(reward.confidence_penalty(), [1] * 5, **fields), [1] * 5)
    fields |= {"group": [0, 0, 0, 0, 0], "lengths": [0, 2, 2, 0, 0]}  # c = 0, 0.2, 0.5, 0, 0
    close(got(reward.confidence_penalty(), [1, 0, 0, 0, 0], **fields), [1, -0.2 / 0.8 / 5, -0.2, 0, 0])


def test_likelihoods():
    r = {"mask": [[1, 1, 1, 0]], "raw_logp": [[-1.0, -2, -0.5, -3]], "extra": {"reference_answer": [[0, 1, 1, 1]]}}
    close(got(reward.reference_likelihood(), [9], **r), [math.exp(-2.5)])
    after, there = floats([[-4.0, -1, -9]]), floats([[1, 1, 0]])
    student = types.Scores(logp=floats([[-2.0, -2.5, -1, -9]]), after_logp=after, after_mask=there)
    # solution: mean -2.5, min -4; gap on the trained tokens: 1, 0.5 and 0.5
    for outcome, expected in ((0, -2.5 - 0.04 - 3 * 2 / 3 - 0.03), (2, -1)):
        row = record([9], outcome=[outcome], **r).replace(scores={"student": student})
        close(paid(reward.student_likelihood(), row)[0], [expected])


def test_lengths_by_themselves():
    for beyond, expected in (("hold", [3, 2.5, 2, 2]), ("grow", [3, 2.5, 2, 1]), ("zero", [3, 2.5, 2, 0])):
        close(got(reward.overlong(4, 2, 1.0, beyond), [3] * 4, lengths=[2, 3, 4, 6]), expected)
    close(got(reward.cosine_length(4), [1, 1, 1, 0, 0, 0], lengths=[0, 2, 4, 0, 2, 6]), [1, 0.75, 0.5, -1, -0.75, -0.5])
    close(got(reward.budget_triangle(4.0), [1, 0, 1, 1], lengths=[4, 2, 8, 9]), [1.5, 0.25, 1, 1])
    close(got(reward.length_gap(), [1, 1, 0], lengths=[4, 1, 1], parts={"length_gap": [-2, 20, 3]}), [0.9, 0.5, 0])
    close(got(reward.truncated(0.25), [1, 1], finish=[0, 1]), [0.25, 1])


@pytest.mark.full
def test_lengths_within_the_group():
    rewards, fields = [1, 1, 0, 1, 0], {"lengths": [2, 4, 6, 3, 3], "group": [0, 0, 0, 1, 1]}
    close(got(reward.min_max_length(2.0), rewards, **fields), [2, 1, -1, 1, 0])
    z = np.array([-2, 0, 2, 0, 0]) / math.sqrt(8 / 3)
    expected = np.where(rewards, np.exp(-0.1 * z), 1 - np.exp(-0.3 * z))
    close(got(reward.length_zscore(0.1, 0.3), rewards, **fields), expected)
    for w, charged in ((0.0, rewards), (0.2, [1 - 0.4 / 9, 1 - 0.8 / 9, -1.2 / 9, 0.9, -0.1])):
        close(got(reward.relative_length(w), rewards, **fields), charged)
    turns = {"mask": [[1, 1, 1], [1, 0, 1]], "turn": [[0, 0, 0], [0, 1, 2]]}  # turn 1 of row 1 has no trained token
    close(got(reward.relative_length(0.0, 0.5), [1, 1], **turns), [0.75, 0.5])
    fields = {"lengths": [2, 0, 1, 2, 5, 1], "group": [0, 0, 0, 0, 0, 1]}  # wrong rows beside a right one of 2 tokens
    close(got(reward.sibling_cosine(2), [1, 0, 0, 0, 0, 0], **fields), [1, -0.5, -0.25, 0, -0.5, -0.25])
    close(got(reward.sibling_cosine(2), [1] * 6, **fields), [1] * 6)
    parts = {"tag": [1, 0, -1, 1], "easy": [1, 1, 1, 0]}
    close(got(reward.tag_cosine(), [1, 1, -1, 1], lengths=[2, 4, 4, 1], parts=parts), [2.5, 1, -2, 2])


@pytest.mark.full
def test_only_the_groups_solved_best_are_asked_to_be_short():
    rewards, group = [1, 1, 1, 0, 1, 0, 1, 1], [5, 5, 1, 1, 3, 3, 8, 8]  # rates 1, 1/2, 1/2, 1
    low, high = (1 - 0.5 / (1 + math.exp(s)) for s in (1, -1))
    for share, last in ((0.25, [1, 0, 1, 0, 1, 1]), (0.51, [0.75, 0, 1, 0, 0.75, 0.75])):  # the earlier of two equals
        close(got(reward.solve_rate_length(share), rewards, group, [1, 3, *[2] * 6]), [low, high, *last])
    close(got(reward.solve_rate_length(0.0), rewards, group), rewards)
    close(got(reward.solve_rate_length(0.2), [1] * 5, [4, 3, 2, 1, 0]), [0.75, 1, 1, 1, 1])


def test_modes_are_balanced_by_their_share():
    for limit, expected in ((1.0, [1, 0, 1, 2]), (0.5, [0.5, -0.5, 0.5, 2])):  # think less 2 (0.75 - 0.5)
        close(got(reward.mode_balance(limit), [1, 0, 1, 1], parts={"think": [1, 1, 1, 0]}), expected)
    close(got(reward.mode_balance(), [1, 0], parts={"think": [0, 0]}), [1, -2])  # all in one mode: the other end


@pytest.mark.full
def test_repetition_is_counted_over_trained_tokens():
    rows = {"token": [[1, 2, 9, 1, 2, 1], [1, 2] * 3, [4] * 6], "mask": [[1, 1, 0, 1, 1, 1], [1] * 6, [1, 0] * 3]}
    close(got(reward.repetition(-1.0, 2), [0] * 3, **rows), [-0.5, -0.6, -0.5])  # 12 21 12 21 is two of four
    close(got(reward.repetition(-1.0, 7), [0] * 3, **rows), [0, 0, 0])
    close(got(reward.repetition(-1.0, 3, "wrong"), [1, 0, 0], **rows), [1, -0.5, 0])
    rows = {"token": [[3, 1, 2, 1, 2], [3, 1, 2, 1, 2], [9, 5, 6, 6, 9], [1, 2, 3, 4, 5], [1, 9, 2, 1, 2]]}
    rows |= {"mask": [[1] * 5, [1] * 5, [1, 1, 1, 1, 0], [1] * 5, [1, 0, 1, 1, 1]], "finish": [0, 1, 0, 0, 0]}
    close(got(reward.tail_repetition(), [0] * 5, **rows), [-0.2, 0, -0.2, 0, -0.2])
    close(got(reward.tail_repetition(0.2, 1), [0] * 5, **rows), [0, 0, -0.2, 0, 0])


def test_process_rewards_are_bounded():
    steps = {"mask": [[1, 0, 1, 1], [0, 0, 0, 0]], "token_reward": [[3, 50, 1, 4], [7, 7, 7, 7]]}
    close(tokens(reward.clip_process(2.0), [0, 0], **steps), [[0, 0, -1, 0], [0] * 4])
    close(tokens(reward.delta_process(), [0, 0], **steps), [[2, 0, -3, 4], [0] * 4])  # to go: 3, 1, 4
    for threshold, kept in ((-np.inf, 1), (1.0, 1), (np.inf, 0)):
        close(got(reward.gated(threshold), [1, 1], **steps), [1 + 8 * kept, 1])


@pytest.mark.full
def test_turns_are_paid():
    row = {"mask": [[1, 1, 0, 1, 1, 1]], "turn": [[0, 0, 1, 1, 2, 2]], "token_reward": [[1, 2, 50, 4, 8, 16]]}
    close(tokens(reward.only_turn(2), [5], **row), [[0, 0, 0, 0, 8, 16]])
    close(tokens(reward.improvement(10.0), [5], **row), [[1, 2, 0, 4 + 10 * (4 - 3), 8, 16]])
    close(tokens(reward.improvement(10.0), [5], **row | {"turn": [[1] * 6]}), [[1, 2, 0, 4, 8, 16]])
    row["extra"] = {"match": [[1, 1, 0, 1, 0, 1]]}
    close(tokens(reward.turn_returns(0.0), [5], **row), [[0, 3, 0, 4, 0, 24]])
    close(tokens(reward.turn_returns(0.5), [5], **row), [[0, 3 + 0.5 * 16, 0, 4 + 0.5 * 24, 0, 24]])
    row |= {"extra": {"match": [[1, 1, 1, 0, 1, 1]]}, "turn": [[0, 0, 3, 3, 7, 7]]}  # the second misses: cut there
    close(tokens(reward.turn_returns(0.5), [5], **row), [[0, 3 + 0.5 * 4, 0, 4, 0, 24]])
    rows = {"mask": [[1, 1, 1], [1, 0, 1], [1, 1, 1]], "turn": [[0, 0, 1], [0, 0, 0], [0, 1, 2]], "agent": [0, 0, 1]}
    rows["token_reward"] = [[1, 2, 9], [1, 50, 2], [5, 6, 7]]
    close(tokens(reward.center_turns(), [5] * 3, **rows), [[0, -2, 4], [0, 0, -2], [-1, 0, 1]])
    close(tokens(reward.center_turns("turn"), [5] * 3, **rows)[2], [5 - 11 / 3, 6 - 7.5, 0])


def test_scale_multiplies_every_payment_and_what_it_is_before_charges():
    r = record([1.0, -2.0], lengths=[2, 3], token_reward=[[0.5, 1.0, 0.0], [2.0, 0.0, -1.0]])
    close = functools.partial(np.testing.assert_allclose, atol=1e-6)
    total, rewards, _ = paid(reward.scale(0.1), r)
    close(total, [0.1, -0.2])
    close(rewards, [[0.05, 0.1, 0.0], [0.2, 0.0, -0.1]])
    assert paid(reward.scale(3.0), record([1.0, -2.0]))[1] is None
    charged = r.replace(raw_logp=floats([[-1.0, -2.0, 0.0]] * 2), ref_logp=floats([[-1.5, -1.0, 0.0]] * 2))
    for piece in (reward.kl("k1", 0.5), reward.scale(0.1)):
        charged = piece.apply(charged, piece.init(), jax.random.key(0))[0]
    close(charged.token_reward, [[0.025, 0.15, 0.0], [0.175, 0.05, -0.1]])  # less 0.05 of (0.5, -1)
    close(trajectories.uncharged(charged), [0.1 * (1 + 1.5), 0.1 * (-2 + 1)])
