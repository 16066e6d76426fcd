"""Completions that begin with given tokens: no loss touches these, and what follows is sampled and paid as a whole."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import types
from rljax.transforms import schedule, source
from tests.support import enumeration as world
from tests.transforms.source.prefix_cases import PROBLEMS, batch, edited, edits, merge, second_of, shown


def selecting(piece):
    run = jax.jit(piece.select, static_argnums=2)
    return lambda rows, pool: jax.device_get(run(rows, pool, rows.reward.size, jax.random.key(0)))[1]


def heading(piece):
    run = jax.jit(piece.head, static_argnums=1)
    return lambda rows, solutions, pool=(): np.asarray(run(pool, PROBLEMS, rows, solutions, jax.random.key(0)).length)


def lengths(piece, rows, solutions, pool=()):
    return heading(piece)(rows, solutions, pool)


# --- heads of demonstrations ----------------------------------------------------------


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


@pytest.mark.full
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


# --- gradients, by enumeration --------------------------------------------------------


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


# --- forks of the policy's own completions --------------------------------------------


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
    piece = source.cure(share=0.25, branches=1, top=2, forks=2)
    edit = edits(piece, rows, count=8)(jax.random.key(0))
    np.testing.assert_array_equal(edit.row, np.repeat([0, 1, 8, 9], 2))
    np.testing.assert_array_equal(np.sort(edit.head.length.reshape(4, 2)), np.sort(best[[0, 1, 8, 9], :2]))
    merged = merge(piece, rows, second_of(edit, 1, rewards[:8]), edit)
    np.testing.assert_allclose(merged.reward, [0, 0, *rewards[:4], 0, 0, 0, 0, *rewards[4:8], 0, 0], rtol=1e-6)
    with pytest.raises(ValueError, match=r"cure: share=0.5 of a group, forks=1 and branches=3 .* at most 0.25"):
        source.cure(0.5, 3)
    with pytest.raises(ValueError, match=r"cure: forks=3 cuts are more than .* top=2"):
        source.cure(0.1, 1, top=2, forks=3)


def test_the_earliest_of_the_steps_that_later_ones_attend_to_most_are_cut():
    attention = np.full((16, 8), -1.0, np.float32)
    attention[:, [2, 4, 5, 7]] = [0.1, 0.4, 0.2, 0.3]  # of the four steps behind the first one
    attention[1, 4] = 0.25
    right = np.array([types.Outcome.CORRECT] * 2 + [types.Outcome.WRONG] * 14)
    rows = batch([0] * 16, samples=8, outcome=right)
    rows.extra["attention"] = attention
    piece = source.attended(";", share=0.25, forks=2, top=0.5)
    edit = edited(piece, rows, count=8)
    np.testing.assert_array_equal(edit.row[edit.used], [0, 0, 8, 8, 9, 9])  # ceil(2 / e) rows of the first group
    np.testing.assert_array_equal(edit.head.length[edit.used], [4, 7] * 3)
    unjudged = np.full(16, int(types.Outcome.UNJUDGED))
    by_reward = edited(piece, rows.replace(outcome=unjudged, reward=1.0 * (right == types.Outcome.CORRECT)), count=8)
    np.testing.assert_array_equal(by_reward.row[by_reward.used], [0, 0, 8, 8, 9, 9])
    rewards = np.arange(8) / 10
    second = second_of(edit, 1, rewards).replace(outcome=right[:8])
    second.extra["attention"] = attention[:8]
    merged = merge(piece, rows, second, edit)
    np.testing.assert_allclose(merged.reward, [0, 0, 0, 0.1, *[0] * 6, *rewards[2:6], 0, 0], rtol=1e-6)
    edit = edited(source.attended(";", share=0.25, forks=3, top=0.25), rows, count=12)
    np.testing.assert_array_equal(edit.row[edit.used], [0, 8, 9])  # a row has one such step
    with pytest.raises(ValueError, match=r"attended: share=0.5 of a group and forks=2 of each are 1.5 times the group"):
        source.attended(";", 0.5)


def test_steps_are_numbered_behind_their_delimiters_and_attention_is_read_at_their_first_tokens():
    token = np.array([[5, 9, 5, 5, 9, 5, 0, 0], [9, 9, 5, 9, 5, 5, 5, 9]], np.int32)
    rows = batch([0, 0], samples=2, length=[6, 8])
    rows = rows.replace(action=rows.action.replace(token=token))
    seen = []

    def attention(step, apart):
        seen.append((np.asarray(step), apart))
        return np.arange(16.0).reshape(2, 8)

    problems = dataclasses.replace(PROBLEMS, encode=lambda text: [9])
    got = source.attended(";", apart=3).again.look(problems, rows, attention)
    np.testing.assert_array_equal(seen[0][0], [[1, 1, 2, 2, 2, 3, 0, 0], [1, 2, 3, 3, 4, 4, 4, 4]])
    assert seen[0][1] == 3
    np.testing.assert_array_equal(got, [[-1, -1, 1, -1, -1, 2, -1, -1], [-1, 9, 10, -1, 11, -1, -1, -1]])
    problems = dataclasses.replace(PROBLEMS, encode=lambda text: [9, 9])
    with pytest.raises(ValueError, match=r"attended: delimiter=';;': expected text of one token, it has 2"):
        source.attended(";;").again.look(problems, rows, attention)


def test_a_retry_continues_each_row_of_a_failed_group_in_its_place():
    rows = batch([0, 1, 0, 0], samples=2, length=[8, 8, 5, 7])
    piece = source.retry_from_middle(0.5, 0.5)
    edit = edited(piece, rows, count=3)
    np.testing.assert_array_equal(edit.row, [2, 3, 0])
    np.testing.assert_array_equal(edit.used, [True, True, False])
    np.testing.assert_array_equal(edit.head.length, [2, 3, 0])
    shown = edited(piece, rows.replace(on_policy=np.array([1, 1, 1, 0], np.float32)), count=3)
    np.testing.assert_array_equal(shown.row[shown.used], [2])  # a demonstration stays
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
    crashed = merge(piece, rows, second.replace(valid=np.repeat([1, 1, 0, 1], 2).astype(np.float32)), edit)
    np.testing.assert_allclose(crashed.extra["cut_reward"], [[1, 1], [0, 1]])  # the row's own reward in its place
    one = source.anytime(cuts=1, summaries=2, room=4)
    edit = edited(one, rows, count=2)
    merged = merge(one, rows, second_of(edit, 2, [9, 9, 0, 1], width=12), edit)
    np.testing.assert_allclose(advantage[0](merged), advantage[1](merged))
    with pytest.raises(ValueError, match="room=12 leaves 0 of 12 completion tokens for 1 budgets"):
        edited(source.anytime(cuts=1, room=12), rows, count=2)


def test_continuations_from_where_a_row_is_cut_credit_its_segments():
    token = np.array([[7, 2, 7, 2, 7, 2, 9, 0], [7, 7, 2, 9, 0, 0, 0, 0], [7, 9, 0, 0, 0, 0, 0, 0]])
    rows = batch([1, 0, 1], samples=3, length=[7, 4, 2])
    rows = rows.replace(action=rows.action.replace(token=jnp.asarray(token, jnp.int32)))
    piece = source.vine(cuts=3, samples=2)
    edit = edited(piece, rows, count=9)
    np.testing.assert_array_equal(edit.row, np.repeat([0, 1, 2], 3))
    np.testing.assert_array_equal(edit.head.length.reshape(3, 3), [[1, 3, 5], [1, 2, 3], [0, 1, 1]])
    behind = edited(source.vine(cuts=3, samples=2, delimiter="h"), rows, count=9)
    np.testing.assert_array_equal(behind.head.length.reshape(3, 3), [[1, 3, 5], [0, 1, 2], [0, 1, 1]])
    with pytest.raises(ValueError, match="vine: delimiter='hi': expected text of one token"):
        edited(source.vine(cuts=3, samples=2, delimiter="hi"), rows, count=9)
    rewards = np.arange(18) / 10
    merged = merge(piece, rows, second_of(edit, 2, rewards), edit)
    value = rewards.reshape(3, 3, 2).mean(axis=2)
    np.testing.assert_allclose(merged.extra["cut_reward"], value, rtol=1e-6)
    np.testing.assert_array_equal(
        merged.extra["segment"][:, :6], [[0, 1, 1, 2, 2, 3], [0, 1, 2, 3, 3, 3], [1] + [3] * 5]
    )
    for name in ("reward", "mask", "valid"):
        np.testing.assert_array_equal(getattr(merged, name), getattr(rows, name))
    got = jax.jit(lambda r: rljax.transform("vine_ppo(cuts=3)", r).advantage)(merged)
    np.testing.assert_allclose(got[0, :6], np.diff([0.5, *value[0], 1])[[0, 1, 1, 2, 2, 3]], rtol=1e-5)
    np.testing.assert_allclose(got[2, :2], [value[2, 1] - value[2, 0], 1 - value[2, 2]], rtol=1e-5)


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
