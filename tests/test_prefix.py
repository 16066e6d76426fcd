"""Completions that begin with given tokens: no loss touches these, and what follows is sampled and paid as a whole."""

import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rich.console

import rljax
from rljax import types
from rljax.run import host_rollouts, verdicts
from rljax.run.reports import show_rollouts
from rljax.training import phases, row_metrics
from rljax.transforms import ratio, schedule, source
from rljax.transforms.source import chain
from tests import enumeration as world
from tests import test_sources as contract
from tests import tiny

PROBLEMS = types.Problems(
    size=6,
    domains=1,
    domain=jnp.zeros_like,
    encode=lambda text: [ord(c) - ord("a") for c in text],
    shuffled=lambda index: index,
)


def batch(reward, *, samples, width=8, length=None, **fields):
    """Return scored rows of prompts 0, 1, ...; token t of row b is 10 b + t."""
    reward = np.asarray(reward, np.float32)
    rows, column = reward.size, np.arange(width, dtype=np.int32)[None, :]
    length = np.full(rows, width, np.int32) if length is None else np.asarray(length, np.int32)
    number, one = np.arange(rows, dtype=np.int32), np.ones(rows, np.float32)
    mask = (column < length[:, None]).astype(np.float32)
    values = {
        "mask": mask,
        "reward": reward,
        "group": number // samples + 7,
        "index": number // samples,
        "episode": number,
        "valid": one,
        "entropy": 0 * mask,
        "on_policy": one,
        "finish": np.full(rows, types.Finish.STOP, np.int32),
        "action": types.Action(token=10 * number[:, None] + column, length=length),
        "context": types.Context(token=np.full((rows, 3), 99, np.int32), mask=np.ones((rows, 3), np.float32)),
        "extra": {"pass": 0 * one, "head": 0 * mask},
    }
    return types.Rollout(**(values | fields))


def second_of(edit, samples, reward=1.0, width=8):
    """Return rows of a second pass: token 1000, and reward 1 unless ``reward`` says otherwise."""
    count = edit.row.size * samples
    rows = batch(np.broadcast_to(reward, count), samples=samples, width=width)
    return rows.replace(
        action=rows.action.replace(token=0 * rows.action.token + 1000),
        valid=np.repeat(edit.used, samples).astype(np.float32),
        extra={**rows.extra, "pass": np.ones(count, np.float32)},
    )


def edited(piece, rows, *, count, solutions=None, pool=()):
    return edits(piece, rows, count=count, solutions=solutions, pool=pool)(jax.random.key(0))


def edits(piece, rows, *, count, solutions=None, pool=()):
    run = jax.jit(piece.again.edit, static_argnums=(1, 4))
    return lambda key: jax.device_get(run(pool, PROBLEMS, rows, solutions, count, key))


def merge(piece, first, second, edit):
    return jax.device_get(jax.jit(piece.again.merge)(first, second, edit))


def selecting(piece):
    run = jax.jit(piece.select, static_argnums=2)
    return lambda rows, pool: jax.device_get(run(rows, pool, rows.reward.size, jax.random.key(0)))[1]


def shown(*length, width=8):
    return types.Action(
        token=jnp.tile(100 + jnp.arange(width, dtype=jnp.int32), (len(length), 1)),
        length=jnp.asarray(length, jnp.int32),
    )


def heading(piece):
    run = jax.jit(piece.head, static_argnums=1)
    return lambda rows, solutions, pool=(): np.asarray(run(pool, PROBLEMS, rows, solutions, jax.random.key(0)).length)


def lengths(piece, rows, solutions, pool=()):
    return heading(piece)(rows, solutions, pool)


# --- heads of demonstrations ----------------------------------------------------------------------


def test_a_share_of_0_is_the_plain_source():
    plain, none = source.task(), source.prefixed(0.0)
    for name in ("head", "choose", "again", "init", "select", "observe", "in_flight"):
        assert getattr(none, name) is getattr(plain, name)
    assert (none.solutions, none.supplies, none.off_policy) == (False, frozenset(), False)


def test_a_head_is_a_share_of_the_tokens_before_the_end():
    rows, solutions = batch([0] * 4, samples=1), shown(6, 6, 1, 0)
    for share in (0.4, jnp.float32(0.4)):  # a schedule is a traced number
        np.testing.assert_array_equal(lengths(source.prefixed(share), rows, solutions), [2, 2, 0, 0])
    np.testing.assert_array_equal(lengths(source.prefixed(1.0), rows, solutions), [5, 5, 0, 0])
    np.testing.assert_array_equal(lengths(source.prefixed(jnp.float32(0)), rows, solutions), 0)
    piece, seen = source.prefixed(schedule.linear(0.8, 0.0, 2)), []
    pool = piece.init(rows, PROBLEMS)
    for _ in range(3):
        seen.append(lengths(piece, rows, solutions, pool).tolist())
        pool = piece.observe(pool, {})
    assert seen == [[4, 4, 0, 0], [2, 2, 0, 0], [0] * 4]


def test_random_heads_are_those_of_the_prompt_whatever_rows_are_sampled_together():
    rows = batch([0] * 4000, samples=4, width=2)
    solutions = shown(*[101] * 4000, width=2)
    drawn = lengths(source.prefixed_between(0.2, 0.6), rows, solutions).reshape(-1, 4)
    np.testing.assert_array_equal(drawn, drawn[:, :1].repeat(4, 1))
    assert drawn.min() >= 20 and drawn.max() <= 60
    assert abs(drawn[:, 0].mean() - 40) < 5 * 40 / np.sqrt(12) / np.sqrt(1000)
    half = jax.tree.map(lambda x: x[2000:], rows)
    later = lengths(source.prefixed_between(0.2, 0.6), half, shown(*[101] * 2000, width=2))
    np.testing.assert_array_equal(later, drawn.reshape(-1)[2000:])
    each = lengths(source.prefixed_between(0.2, 0.6, "row"), rows, solutions).reshape(-1, 4)
    assert np.mean(each[:, 0] != each[:, 1]) > 0.9
    some = lengths(source.prefixed_between(0.5, 0.5, chance=0.3), rows, solutions).reshape(-1, 4)
    assert set(some.reshape(-1)) == {0, 50} and abs(np.mean(some[:, 0] > 0) - 0.3) < 0.075
    width = 20
    drawn = lengths(
        source.prefixed_binomial(0.3, "row"),
        batch([0] * 4000, samples=4, width=width),
        shown(*[11] * 4000, width=width),
    )
    assert abs(drawn.mean() - 3.0) < 5 * np.sqrt(2.1 / 4000) and abs(drawn.var() - 2.1) < 0.25


def test_a_backward_curriculum_reaches_the_whole_problem_of_a_learner_that_plain_sampling_never_helps():
    # The learner completes at most ``skill`` of 10 tokens, and gains one token each time that it succeeds.
    piece = source.backward(start=0.9, change=0.1, threshold=0.5)
    pool = piece.init(None, PROBLEMS)
    skill = np.array([1, 1, 1, 1, 3, 0])
    solutions, shares, head_of, after = shown(*[11] * 12, width=12), [], heading(piece), selecting(piece)
    for _ in range(12):
        rows = batch([0] * 12, samples=2)
        head = head_of(rows, solutions, pool)
        left = 10 - head[::2]
        won = left <= skill
        shares.append(head[::2])
        pool = after(batch(np.repeat(won, 2), samples=2), pool)
        skill = skill + won
    shares = np.array(shares)
    for prompt in range(5):  # each step one token back, to the whole problem
        np.testing.assert_array_equal(shares[:, prompt], np.maximum(9 - np.arange(12), 0))
    np.testing.assert_array_equal(shares[:, 5], 9)  # never succeeds: stays
    together = source.backward(start=0.9, change=0.1, threshold=0.5, each="batch")
    start, after = together.init(None, PROBLEMS), selecting(together)
    for wins, share in ((6, 0.8), (5, 0.9), (0, 0.9)):
        pool = after(batch([1] * wins + [0] * (12 - wins), samples=2), start)
        np.testing.assert_allclose(pool["share"], [share], rtol=1e-6)


def test_a_prompt_outside_the_candidates_has_their_mean_start():
    piece = source.backward(start=0.5, change=0.5, candidates=2)
    pool = selecting(piece)(batch([1, 0, 1], samples=1), piece.init(None, PROBLEMS))
    np.testing.assert_allclose(pool["share"], [0.0, 0.5])
    np.testing.assert_array_equal(lengths(piece, batch([0] * 3, samples=1), shown(9, 9, 9, width=9), pool), [0, 4, 2])


def test_bread_branches_from_the_demonstration_where_a_whole_group_failed():
    piece = source.bread(share=0.5, change=0.25, prompts=0.5)
    pool = piece.init(None, PROBLEMS)
    rows = batch([0, 1, 0, 0, 1, 1, 0, 0], samples=2)
    edit = edited(piece, rows, count=3, solutions=shown(9, 9, 9, 9, 5, 5, 7, 7, width=9), pool=pool)
    np.testing.assert_array_equal(edit.row, [2, 6, 0])
    np.testing.assert_array_equal(edit.used, [True, True, False])
    np.testing.assert_array_equal(edit.head.length, [4, 3, 4])
    np.testing.assert_array_equal(edit.head.token[0], 100 + np.arange(9))
    merged = merge(piece, rows, second_of(edit, 2, [1, 0, 0, 0, 1, 1]), edit)
    np.testing.assert_array_equal(merged.reward, [0, 1, 1, 0, 1, 1, 0, 0])
    np.testing.assert_array_equal(merged.extra["pass"], [0, 0, 1, 1, 0, 0, 1, 1])
    np.testing.assert_array_equal(merged.episode, np.arange(8))
    after = selecting(piece)
    pool = after(merged.replace(index=rows.index, group=rows.group), pool)
    np.testing.assert_allclose(pool["share"], [0.5, 0.5, 0.5, 0.75, 0.5, 0.5])  # half of the branches: as it was
    solved = merged.replace(index=rows.index, group=rows.group, reward=np.ones(8, np.float32))
    np.testing.assert_allclose(after(solved, pool)["share"][:4], [0.5, 0.25, 0.5, 0.5])


# --- gradients, by enumeration --------------------------------------------------------------------

GIVEN = 1  # the first of three tokens
BEGIN = world.SEQUENCE[:, 0] == GIVEN
SEQUENCE, STATE, REWARD = world.SEQUENCE[BEGIN], world.STATE[BEGIN], world.REWARD[BEGIN]


def rows_given(**fields):
    rows, head = REWARD.size, np.tile([1.0, 0, 0], (REWARD.size, 1))
    logp = world.LOGP[BEGIN]
    return rljax.rollout_from_arrays(
        mask=1 - head,
        reward=REWARD,
        group=np.zeros(rows, int),
        behaviour_logp=logp * (1 - head),
        raw_logp=logp * (1 - head),
        ref_logp=world.REF[BEGIN],
        extra={"head": head},
        **fields,
    )


def gradient(recipe, rows, table=world.LOGITS, **seam):
    def loss(table):
        logp = jax.nn.log_softmax(table)[STATE, SEQUENCE]
        return rljax.objective(recipe, rows, types.Scores(logp=logp), **({"seam": seam} if seam else {}))[0]

    return np.asarray(jax.jit(jax.grad(loss))(jnp.asarray(table)))


def continuation(table):
    return jnp.exp(jnp.sum(jax.nn.log_softmax(table)[STATE, SEQUENCE][:, 1:], axis=1))


@pytest.mark.parametrize("recipe", ["grpo(kl=0.1)", "dapo()", "gspo()", "reinforce_plus_plus()", "cispo()"])
def test_no_term_moves_the_probability_of_a_given_token(recipe):
    assert not np.any(gradient(recipe, rows_given())[0])
    assert np.any(gradient(recipe, rows_given()))


def test_the_expected_gradient_is_that_of_the_reward_given_the_head():
    truth = jax.jit(jax.grad(lambda table: jnp.sum(continuation(table) * REWARD)))(jnp.asarray(world.LOGITS))
    weight = np.asarray(continuation(jnp.asarray(world.LOGITS))) * REWARD.size
    rows = rows_given(advantage=((REWARD - 0.3) * weight)[:, None] * np.ones((1, 3)))
    got = gradient("reinforce()", rows, reduce="mean_over_rows_of_sums()")
    np.testing.assert_allclose(got, -truth, atol=1e-6)


def test_the_likelihood_of_hints_is_the_only_term_on_given_tokens():
    recipe = "grpo(kl=0.1)"
    plain = gradient(recipe, rows_given())
    both = gradient(recipe, rows_given(), penalty="+ hint_nll(0.25)")
    want = -0.25 * jax.grad(lambda table: jax.nn.log_softmax(table)[0, GIVEN])(jnp.asarray(world.LOGITS))
    np.testing.assert_allclose(both - plain, want, atol=1e-6)


# --- forks of the policy's own completions ---------------------------------------------------------


def test_cure_continues_before_a_token_of_high_entropy_into_the_same_group():
    entropy = np.random.default_rng(3).random((16, 8), np.float32)
    rows = batch([0] * 16, samples=8, entropy=entropy, length=[8] * 15 + [5])
    piece = source.cure(share=0.25, branches=3, top=3)
    best = np.argsort(-entropy[:, :7], axis=1)[:, :3]  # the last token ends the row
    seen, run = set(), edits(piece, rows, count=4)
    for key in range(20):
        edit = run(jax.random.key(key))
        np.testing.assert_array_equal(edit.row, [0, 1, 8, 9])
        assert all(edit.used)
        assert all(length in best[row] for row, length in zip(edit.row, edit.head.length, strict=True))
        seen.add(int(edit.head.length[0]))
        np.testing.assert_array_equal(edit.head.token, rows.action.token[edit.row])
    assert seen == set(best[0])
    rewards = np.arange(12) / 10
    merged = merge(piece, rows, second_of(edit, 3, rewards), edit)
    np.testing.assert_allclose(merged.reward, [0, 0, *rewards[:6], 0, 0, *rewards[6:]], rtol=1e-6)
    np.testing.assert_array_equal(merged.extra["pass"], [0, 0, 1, 1, 1, 1, 1, 1] * 2)
    with pytest.raises(ValueError, match=r"cure: share=0.5 of a group and branches=3 .* at most 0.25"):
        source.cure(0.5, 3)


def test_a_retry_continues_each_row_of_a_failed_group_in_its_place():
    rows = batch([0, 1, 0, 0], samples=2, length=[8, 8, 5, 7])
    piece = source.retry_from_middle(0.5, 0.5)
    edit = edited(piece, rows, count=3)
    np.testing.assert_array_equal(edit.row, [2, 3, 0])
    np.testing.assert_array_equal(edit.used, [True, True, False])
    np.testing.assert_array_equal(edit.head.length, [2, 3, 0])
    merged = merge(piece, rows, second_of(edit, 1), edit)
    np.testing.assert_array_equal(merged.reward, [0, 1, 1, 1])
    np.testing.assert_array_equal(merged.action.token[:2], rows.action.token[:2])


def test_branches_of_a_flat_group_share_one_state():
    rows = batch([1, 1, 1, 0, 1, 0, 0, 0, 0], samples=3, length=[8] * 9)
    piece = source.branched(0.5, 0.5)
    edit = edited(piece, rows, count=2)
    np.testing.assert_array_equal(edit.used, [True, True])
    assert 0 <= edit.row[0] < 3 and 6 <= edit.row[1] < 9
    np.testing.assert_array_equal(edit.head.token, rows.action.token[edit.row])
    merged = merge(piece, rows, second_of(edit, 3, [1, 0, 0, 0, 0, 1]), edit)
    np.testing.assert_array_equal(merged.reward, [1, 0, 0, 0, 1, 0, 0, 0, 1])


def test_budgets_cut_thoughts_and_credit_what_comes_before():
    piece = source.anytime(cuts=2, summaries=2, room=4, text="ba")
    rows = batch([1, 0], samples=2, width=12, length=[3, 12])
    edit = edited(piece, rows, count=4)
    np.testing.assert_array_equal(edit.row, [0, 0, 1, 1])
    np.testing.assert_array_equal(edit.used, [False, False, True, True])
    np.testing.assert_array_equal(edit.head.length[2:], [6, 10])
    np.testing.assert_array_equal(edit.head.token[2, :6], [10, 11, 12, 13, 1, 0])  # 4 of 8, then the text
    np.testing.assert_array_equal(edit.head.token[3, 6:10], [16, 17, 1, 0])
    second = second_of(edit, 2, [9, 9, 9, 9, 0, 1, 1, 1], width=12)
    merged = merge(piece, rows, second, edit)
    np.testing.assert_allclose(merged.extra["cut_reward"], [[1, 1], [0.5, 1]])
    np.testing.assert_array_equal(merged.extra["segment"], [[0] * 4 + [1] * 8] * 2)
    np.testing.assert_allclose(merged.reward, [1, 0.75])
    np.testing.assert_array_equal(merged.mask, [[1] * 3 + [0] * 9, [1] * 8 + [0] * 4])
    advantage = [
        jax.jit(lambda r, call=call: rljax.transform(call, r).advantage * r.mask)
        for call in ("brpo_budget()", "dr_grpo()")
    ]
    out = advantage[0](merged)
    # F = [[1, .5], [.75, .5]]; A_0 = F_0 - mean F_0, A_1 = F_1 - r_1 / 4 - mean F_1 / 2
    np.testing.assert_allclose(out[:, 0], [0.125, -0.125])
    np.testing.assert_allclose(out[1, 5], 0.5 - 0.125 - 0.25)
    one = source.anytime(cuts=1, summaries=2, room=4)
    edit = edited(one, rows, count=2)
    merged = merge(one, rows, second_of(edit, 2, [9, 9, 0, 1], width=12), edit)
    np.testing.assert_allclose(advantage[0](merged), advantage[1](merged))
    with pytest.raises(ValueError, match="room=12 leaves 0 of 12 completion tokens for 1 budgets"):
        edited(source.anytime(cuts=1, room=12), rows, count=2)


@pytest.mark.full
def test_budgets_may_be_weighed_and_the_last_summary_trained():
    piece = source.anytime(cuts=2, summaries=2, room=4, text="ba", train_summary=True)
    rows = batch([1, 0, 0], samples=3, width=12, length=[3, 12, 12], behaviour_logp=np.full((3, 12), -1.0))
    edit = edited(piece, rows, count=6)
    second = second_of(edit, 2, [9, 9, 9, 9, 0, 1, 1, 0, 0, 0, 1, 1], width=12)
    given = np.arange(12)[None, :] < np.repeat(edit.head.length, 2)[:, None]
    second = second.replace(behaviour_logp=np.full((12, 12), -2.0), mask=1.0 - given, group=np.full(12, 7))
    second = second.replace(
        extra={**second.extra, "head": given * 1.0},
        context=rows.context.replace(token=np.full((12, 3), 99), mask=np.ones((12, 3))),
    )
    merged = merge(piece, rows, second, edit)
    np.testing.assert_allclose(
        merged.extra["summary"], [0, 0.5, 0]
    )  # the first ending of the last budget, and its mean
    np.testing.assert_array_equal(merged.extra["segment"][1], [0] * 4 + [1] * 4 + [2] * 4)
    np.testing.assert_array_equal(merged.mask[1], [1] * 8 + [0] * 2 + [1] * 2)  # thought, text, ending
    np.testing.assert_array_equal(merged.behaviour_logp[1, [0, 7, 10, 11]], [-1, -1, -2, -2])
    np.testing.assert_array_equal(merged.action.token[1, 10:], 1000)
    np.testing.assert_array_equal(merged.mask[0], [1] * 3 + [0] * 9)  # ended by itself
    np.testing.assert_allclose(merged.extra["cut_reward"], [[1, 1], [0.5, 0.5], [0, 1]])
    cut, probabilities = merged.extra["cut_reward"], {"uniform": [0.5, 0.5], "linear": [1 / 3, 2 / 3], "last": [0, 1]}
    for name, p in probabilities.items():
        got = jax.jit(lambda r, name=name: rljax.transform(f"brpo_budget(budgets='{name}')", r).advantage)(merged)
        ahead = np.stack([cut @ p, p[1] * cut[:, 1]], axis=1)
        late = ahead[:, 1] - 0.5 * cut[:, 0] * p[1] - 0.5 * ahead[:, 1].mean()
        want = np.stack([ahead[:, 0] - ahead[:, 0].mean(), late, [0, 0.5, 0]], axis=1)
        np.testing.assert_allclose(got[1:, [0, 4, 10]], want[1:], atol=1e-6)


# --- tokens written into the policy's own completion -------------------------------------------------


def continued_of(edit, reward):
    """Return the rows that continue the heads of edits: token 1000 and log-prob -2 behind them."""
    given = np.arange(12)[None, :] < np.asarray(edit.head.length)[:, None]
    rows = second_of(edit, 1, reward, width=12)
    return rows.replace(
        mask=1.0 - given,
        action=types.Action(np.where(given, edit.head.token, 1000), length=np.full(len(given), 12)),
        behaviour_logp=np.where(given, 0.0, -2.0),
        extra={**rows.extra, "head": given * 1.0},
        context=types.Context(token=edit.token, mask=edit.mask),
    )


def of_policy(reward, length):
    behaviour = np.full((len(reward), 12), -1.0)
    return batch(reward, samples=2, width=12, length=length, behaviour_logp=behaviour)


def test_a_finished_answer_is_thought_over_again_after_a_trigger():
    rows = of_policy([0, 1, 0, 0], [5, 5, 5, 12])
    piece = source.rethink(("ba", "c"), share=0.75, room=6)
    edit = edited(piece, rows, count=3)
    np.testing.assert_array_equal(edit.row, [0, 2, 1])  # the last one leaves no room
    assert all(edit.used) and piece.off_policy
    for row, token, length in zip(edit.row, edit.head.token, edit.head.length, strict=True):
        np.testing.assert_array_equal(token[:4], 10 * row + np.arange(4))  # without the token that ended it
        assert (token[4:length]).tolist() in ([1, 0], [2])
    merged = merge(piece, rows, continued_of(edit, [1, 0, 1]), edit)
    np.testing.assert_array_equal(merged.reward, [1, 1, 0, 0])
    np.testing.assert_array_equal(merged.extra["pass"], [1, 1, 0, 0])  # row 2 went wrong again and stays
    np.testing.assert_array_equal(merged.on_policy, [0, 0, 1, 1])
    end = int(edit.head.length[0])
    trigger = (np.arange(12) >= 4) & (np.arange(12) < end)
    np.testing.assert_array_equal(merged.extra["head"][0], trigger)
    np.testing.assert_array_equal(merged.mask[0], ~trigger)
    np.testing.assert_array_equal(merged.behaviour_logp[0], np.where(trigger, 0, np.where(np.arange(12) < 4, -1, -2)))
    logp = jnp.where(merged.mask > 0, merged.behaviour_logp, -3.0)

    def moved(**seam):
        loss = jax.grad(lambda x: rljax.objective("exp_grpo()", merged, types.Scores(logp=x), **seam)[0])
        return np.asarray(jax.jit(loss)(logp))[:2]

    fit = np.where(merged.mask[:2] > 0, -0.1 / merged.mask[:2].sum(), 0.0)  # likelihood; the trigger stays
    np.testing.assert_allclose(moved(), fit, atol=1e-6)
    head = merged.extra["head"][:2]
    want = fit - 0.2 / 4 * head
    np.testing.assert_allclose(moved(seam={"penalty": "+ hint_nll(0.2)"}), want, atol=1e-6)
    drawn = edits(piece, rows, count=3)
    assert {int(drawn(jax.random.key(k)).head.length[0]) for k in range(20)} == {5, 6}  # either trigger
    with pytest.raises(ValueError, match="a text has 2 tokens; room=2"):
        edited(source.rethink(("ba",), room=2), rows, count=3)


def test_a_probe_behind_a_dead_end_has_the_log_prob_of_its_draw():
    rows = of_policy([0, 1, 0, 0], [5, 5, 5, 5])
    piece = source.probed(("ba", "bc", "cb"), share=1.0, room=6)
    edit = edited(piece, rows, count=4)
    np.testing.assert_array_equal(edit.row[:3], [0, 2, 3])
    np.testing.assert_array_equal(edit.used, [True, True, True, False])  # row 1 was right
    trie = {(1, 0): [2 / 3, 1 / 2], (1, 2): [2 / 3, 1 / 2], (2, 1): [1 / 3, 1.0]}
    merged = merge(piece, rows, continued_of(edit, [0, 1, 0, 1]), edit)
    np.testing.assert_array_equal(merged.reward, [0, 1, 1, 0])
    for row in (0, 2, 3):
        want = np.log(trie[tuple(merged.action.token[row, 4:6].tolist())])
        np.testing.assert_allclose(merged.extra["probe_logp"][row, 4:6], want, rtol=1e-6)
    np.testing.assert_array_equal(merged.mask[[0, 2, 3]], 1.0)  # the probe is trained too
    logp = jnp.asarray(np.where(np.arange(12) // 2 == 2, -5.0, merged.behaviour_logp))
    got = np.exp(
        ratio.mixture(0.25).apply(types.Loss(), merged, types.Scores(logp=logp), (), jax.random.key(0)).log_ratio
    )
    np.testing.assert_allclose(got[0, [0, 3, 6, 11]], 1.0, rtol=1e-6)  # what the policy wrote
    mu = np.exp(merged.extra["probe_logp"][0, 4:6])
    np.testing.assert_allclose(got[0, 4:6], np.exp(-5) / (0.75 * np.exp(-5) + 0.25 * mu), rtol=1e-5)
    np.testing.assert_array_equal(merged.extra["probe_logp"][1], rows.behaviour_logp[1])


@pytest.mark.parametrize("piece", [source.rethink(("ba",), share=0.5, room=6), source.probed(("ba",), 0.5, room=6)])
def test_what_is_written_behind_a_completion_leaves_its_head_a_head(piece):
    rows = of_policy([0, 0], [5, 12])
    head = np.zeros((2, 12), np.float32)
    head[:, :2] = 1  # of ``prefixed`` in a chain
    rows = rows.replace(mask=rows.mask - head, extra={**rows.extra, "head": head})
    edit = edited(piece, rows, count=1)
    merged = merge(piece, rows, continued_of(edit, [1]), edit)
    assert merged.extra["pass"][0] == 1
    written = merged.mask + merged.extra["head"]
    np.testing.assert_array_equal(written[0], 1)  # as ``rows.written`` reads it: the reports show these tokens
    np.testing.assert_array_equal(merged.extra["head"][0, :4], [1, 1, 0, 0])
    trained = "probe_logp" in merged.extra
    np.testing.assert_array_equal(merged.mask[0, 4:6], trained)
    np.testing.assert_array_equal(merged.extra["head"][0, 4:], [not trained] * 2 + [0] * 6)


def test_the_expert_writes_where_a_wrong_completion_leaves_the_demonstration():
    rows = of_policy([0, 1, 0, 0], [12] * 4)
    token = np.array(rows.action.token)
    token[0, :3], token[2, :12], token[3, 0] = [100, 101, 102], 100 + np.arange(12), 7
    rows = rows.replace(action=rows.action.replace(token=token))
    piece = source.intervene(tokens=2, share=1.0)
    edit = edited(piece, rows, count=4, solutions=shown(9, 9, 9, 9, width=12))
    np.testing.assert_array_equal(edit.row[:2], [0, 3])
    np.testing.assert_array_equal(edit.used, [True, True, False, False])  # right; has the whole demonstration
    np.testing.assert_array_equal(edit.head.length, [5, 2, 0, 0])
    merged = merge(piece, rows, continued_of(edit, [1, 0, 0, 0]), edit)
    np.testing.assert_array_equal(merged.action.token[0], [100, 101, 102, 103, 104] + [1000] * 7)
    np.testing.assert_array_equal(merged.mask[0], [1, 1, 1, 0, 0] + [1] * 7)  # the expert's tokens have no gradient
    np.testing.assert_array_equal(merged.extra["head"][[0, 3], :5], [[0, 0, 0, 1, 1], [1, 1, 0, 0, 0]])
    np.testing.assert_array_equal(merged.behaviour_logp[0], [-1] * 3 + [0] * 2 + [-2] * 7)
    np.testing.assert_array_equal(merged.action.token[2], rows.action.token[2])


def test_a_rewritten_demonstration_counts_if_it_is_right_and_its_group_failed():
    piece = source.expert_rewrite(before="b", after="cd", room=3)
    rows = batch([0, 0, 1, 0, 0, 0], samples=2, width=4)
    more = piece.again.longer(PROBLEMS, 3, 4)
    wide = jax.tree.map(lambda x: np.pad(x, ((0, 0), (more, 0))), rows.context)
    edit = edited(piece, rows.replace(context=wide), count=2, solutions=shown(3, 3, 3, 3, 4, 4, width=4))
    np.testing.assert_array_equal(edit.row, [0, 4])
    np.testing.assert_array_equal(edit.token[0, -8:], [99, 99, 99, 1, 100, 101, 2, 3])  # without end-of-sequence
    np.testing.assert_array_equal(edit.mask.sum(axis=1), [8, 9])
    merged = merge(piece, rows, second_of(edit, 1, [1, 0], width=4), edit)
    np.testing.assert_array_equal(merged.reward, [0, 1, 1, 0, 0, 0])
    np.testing.assert_array_equal(merged.extra["pass"], [0, 1, 0, 0, 0, 0])


# --- in the step --------------------------------------------------------------------------------------


@pytest.mark.full
def test_what_follows_a_head_is_sampled_scored_and_paid_as_one_completion():
    step, state, key = contract.step_of(source.prefixed(0.5))
    rows = step.rollout(state, key)
    head, params = np.asarray(rows.extra["head"]), state.params["policy"]
    assert head.sum() > 0 and not np.any(head * rows.mask)
    score = jax.jit(lambda rows: phases.score(step.setup, "policy", params, rows, types.Needs()).logp)
    logp = np.asarray(score(rows))
    np.testing.assert_allclose(logp * rows.mask, rows.behaviour_logp * rows.mask, atol=1e-5)
    assert np.all(logp[head > 0] < 0)  # the tokens of a head have log-probs, which hint_nll reads
    verdict = step.setup.verify(rows.index, "train", rows.action.token, rows.mask + head)
    np.testing.assert_array_equal(rows.reward, verdict.reward)
    rows = rows.replace(extra={**rows.extra, "now": jnp.zeros_like(rows.group)})
    metrics = jax.jit(lambda rows: row_metrics.metrics(rows, judged=True))(rows)
    np.testing.assert_allclose(metrics["head"], head.sum(axis=1).mean(), rtol=1e-6)
    np.testing.assert_allclose(metrics["length"], rows.mask.sum(axis=1).mean(), rtol=1e-6)
    np.testing.assert_allclose(metrics["truncated"], np.mean(rows.finish == types.Finish.LENGTH), rtol=1e-6)


@pytest.mark.full
def test_branches_continue_the_tokens_of_the_row_that_was_cut():
    step, state, key = contract.step_of(source.cure(share=0.25, branches=3))
    rows = jax.device_get(step.rollout(state, key))
    plain = contract.rows_of(contract.PLAIN)
    first = plain.action.length[::4] > 1  # a row of one token has none that does not end it
    kept = (np.arange(rows.group.size) % 4 == 0) | ~np.repeat(first, 4)
    assert 0 < first.sum()
    np.testing.assert_array_equal(rows.extra["pass"], ~kept)
    np.testing.assert_array_equal(rows.action.token[kept], plain.action.token[kept])
    cut, head = np.repeat(rows.action.token[::4], 4, axis=0), rows.extra["head"] > 0
    np.testing.assert_array_equal(rows.action.token[head], cut[head])
    assert head.any() and np.any(rows.action.token[~kept] != cut[~kept])
    np.testing.assert_array_equal(rows.episode, np.arange(rows.group.size))


@pytest.mark.full
def test_what_the_policy_wrote_before_and_behind_a_probe_has_the_log_probs_that_it_was_sampled_with():
    step, state, key = contract.step_of(source.probed(("+", "1"), share=1.0, room=2))
    rows, params = step.rollout(state, key), state.params["policy"]
    score = jax.jit(lambda rows: phases.score(step.setup, "policy", params, rows, types.Needs()).logp)
    logp, rows = np.asarray(score(rows)), jax.device_get(rows)
    plain, again = contract.rows_of(contract.PLAIN), rows.extra["pass"] > 0
    assert again.any() and not again.all() and not np.any(rows.reward[again & (plain.reward > 0)])
    column, at = np.arange(rows.mask.shape[1])[None, :], (plain.action.length - 1)[:, None]
    probe = again[:, None] & (column == at)
    np.testing.assert_allclose(rows.extra["probe_logp"][probe], np.log(0.5), rtol=1e-6)
    mine = (rows.mask > 0) & ~probe
    np.testing.assert_allclose(logp[mine], rows.behaviour_logp[mine], atol=1e-5)
    before = again[:, None] & (column < at)
    np.testing.assert_array_equal(rows.action.token[before], plain.action.token[before])
    np.testing.assert_array_equal(rows.behaviour_logp[before], plain.behaviour_logp[before])
    assert np.all(rows.mask[probe] == 1) and np.any(mine & again[:, None] & (column > at))


@pytest.mark.full
def test_the_recipe_of_budgets_trains_on_cut_thoughts():
    program = tiny.program("brpo_budget()", seam__source="anytime(cuts=2, summaries=2, room=1)")
    state, metrics = program.steps[-1].fused(program.steps[-1].begin(None, program.key), program.key)
    assert metrics["rows"].extra["cut_reward"].shape == (4, 2) and np.isfinite(metrics["loss"])
    assert int(state.step) == 1
    with pytest.raises(ValueError, match=r"extra\['cut_reward'\], extra\['segment'\], which neither its source"):
        tiny.program("brpo_budget()")


def test_a_head_is_shown_before_what_the_policy_wrote():
    tokens = {"text": ["1", "2", "3"], "advantage": [None, None, 0.5]}
    record = {"step": 1, "index": 0, "group": 0, "prompt": "1+1=", "completion": "123", "reward": 1.0, "parts": {}}
    console = rich.console.Console(record=True, width=80, file=io.StringIO())
    show_rollouts.show([{**record, "head": 2, "tokens": tokens}], console=console)
    text = console.export_text(styles=True)
    assert "head 2 tokens" in text and "\x1b[2;3m1" in text


# --- tasks on the host ---------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::rljax.environments.questions.task.LengthWarning")
def test_a_host_task_reads_the_demonstrations_that_a_source_mixes_in_or_begins_with(tmp_path):
    rows = [{"question": f"{i} + 1 =", "answer": f"#### {i + 1}"} for i in range(24)]
    for name, part in (("train", rows[:16]), ("test", rows[16:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    fields = {
        "task": f"gsm8k(path={str(tmp_path)!r}, prompt_length=32, completion_length=12)",
        "verifier__workers": 1,
        "verifier__chunks": 2,
    }
    program = tiny.program("luffy()", seam__source="+ prefixed(0.5)", **fields)
    step = program.steps[-1]
    with host_rollouts.verifiers(program.setups[-1].task, program.setups[-1].settings.verifier) as workers:
        journal = verdicts.Journal(None, 0)
        out = host_rollouts.rollout(program, step, step.begin(None, program.key), workers, journal, chunks=2)
    out = jax.device_get(out)
    shown = np.arange(out.group.size) % 4 == 3
    np.testing.assert_array_equal(out.on_policy, ~shown)
    token, mask = step.setup.task.demonstrations(out.index, "train")
    np.testing.assert_array_equal(out.mask[shown], mask[shown])
    np.testing.assert_array_equal(out.action.token[shown] * mask[shown], (token * mask)[shown])
    np.testing.assert_array_equal(out.reward[shown], 1.0)
    head = out.extra["head"] > 0
    np.testing.assert_array_equal(out.action.token[head], token[head])
    assert head[~shown].any(axis=1).all() and not head[shown].any()


def pays(completion):
    return 1.0


def test_what_cannot_begin_a_completion_is_refused_by_name(tmp_path):
    for pieces in ((source.partial(2), source.prefixed(0.5)), (source.demonstrations(), source.prefixed(0.5))):
        with pytest.raises(ValueError, match=r"leaves no completion that prefixed\(share=0.5\) could begin"):
            chain.chain(pieces)
    with pytest.raises(ValueError, match=r"prefixed\(share=0.5\) continues completions, and task 'guess' is a world"):
        tiny.program(seam__source="prefixed(0.5)", task="guess()")
    for i, name in enumerate(("train", "test")):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"question": f"What is {i}?"}) + "\n")
    train, heldout = str(tmp_path / "train.jsonl"), str(tmp_path / "test.jsonl")
    task = f"jsonl(path={train!r}, heldout={heldout!r}, answer='', reward='tests.test_prefix:pays')"
    with pytest.raises(ValueError, match=r"has no demonstration for 1 rows .*set demonstration to a column"):
        tiny.program(seam__source="prefixed(0.5)", task=task)


def test_partial_rows_of_a_host_task_are_refused(tmp_path):
    for i, name in enumerate(("train", "test")):
        row = {"question": f"1 + {i} =", "answer": f"#### {i + 1}"}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(ValueError, match=r"partial.* carries rows over inside the program"):
        tiny.program(seam__source="partial(2)", task=f"gsm8k(path={str(tmp_path)!r})")
