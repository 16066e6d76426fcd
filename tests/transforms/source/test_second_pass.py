"""Second passes: which groups are sampled again, from which prompts, what is trained, and what its gradient is."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import types
from rljax.transforms import prepare, ratio, schedule, source
from rljax.transforms.source import edits, groups
from tests.transforms.source import test_sources as contract
from tests.transforms.source.second_pass_cases import G, L, P, T, problems, scored, solutions


def edited(piece, first, count, lengths=(5, 3, 1), pool=()):
    def edit(pool, first, shown):
        return piece.again.edit(pool, problems(), first, shown, count, jax.random.key(0))

    return jax.device_get(jax.jit(edit)(pool, first, solutions(lengths)))


def shown(edit):
    """Return the real tokens of each used edit; padding is on the left."""
    mask = np.asarray(edit.mask)
    assert np.all(np.diff(mask, axis=1) >= 0)
    return [list(t[m > 0]) if u else None for t, m, u in zip(np.asarray(edit.token), mask, edit.used, strict=True)]


def merged(piece, first, edit, right, each):
    """Merge a second pass whose rows ``right`` succeed: its row in each place, -1 for the first's; and all rows."""
    reward = np.zeros(edit.row.size * each, np.float32)
    reward[list(right)] = 1
    again = scored(reward, second=1).replace(
        group=first.group[np.repeat(edit.row, each)],
        context=types.Context(np.repeat(edit.token, each, axis=0), np.repeat(edit.mask, each, axis=0)),
        valid=np.repeat(edit.used, each).astype(np.float32),
    )
    out = jax.device_get(merge_of(piece)(first, again, edit))
    np.testing.assert_array_equal(out.group, first.group)
    number = (out.action.token[:, 0] - 2000) // 10
    return np.where(out.extra["pass"] > 0, number, -1).reshape(P, G).tolist(), out


@functools.cache
def merge_of(piece):
    return jax.jit(piece.again.merge)


FAILED = [[0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]]


KEPT = [-1] * G


def test_ghpo_shows_a_quarter_a_half_and_three_quarters_to_groups_without_a_success():
    piece, first = source.ghpo(text="?"), scored(FAILED, more=4)
    assert piece.again.share == 1.5 and not piece.again.plain and not piece.off_policy
    assert piece.again.longer(problems(), L, T) == 1 + 3
    edit = edited(piece, first, 9)
    start, last = [1, 2, 3, 63], [21, 22, 23, 63]
    assert shown(edit)[:3] == [[*start, 0], [*start, 0, 1], [*start, 0, 1, 2]]  # of 4 words
    assert shown(edit)[3:] == [last, last, last, None, None, None]  # a solution without words shows none
    np.testing.assert_array_equal(edit.row[:6], [0, 0, 0, 8, 8, 8])
    short = shown(edited(piece, scored([[1] * 4, [0] * 4, [1] * 4], more=4), 3))
    assert short == [[12, 13, 63], [12, 13, 63, 100], [12, 13, 63, 100]]  # of 2 words: 0.5, 1 and 1.5, rounded down


def test_ghpo_keeps_the_smallest_share_that_has_a_success():
    piece, first = source.ghpo(), scored(FAILED, more=4)
    edit = edited(piece, first, 9)
    got, out = merged(piece, first, edit, right=(6, 11, 22), each=G)  # 50 and 75 % of prompt 0, 75 % of prompt 2
    assert got == [[4, 5, 6, 7], KEPT, [20, 21, 22, 23]]
    np.testing.assert_array_equal(out.context.token[0], edit.token[1])
    np.testing.assert_array_equal(out.episode, np.arange(P * G))
    got, _ = merged(piece, first, edit, right=(), each=G)
    assert got == [KEPT] * P  # without a success the group stays
    got, _ = merged(piece, first, edit, right=(26, 33), each=G)  # rows of unused places
    assert got == [KEPT] * P


unsolved = jax.jit(edits.unsolved)


def test_places_are_fewer_than_groups_and_rows_that_are_invalid_or_of_others_do_not_count():
    first = scored(FAILED, more=4)
    edit = edited(source.ghpo(), first, 4)  # the last place has one share
    np.testing.assert_array_equal(edit.row, [0, 0, 0, 8])
    assert all(edit.used)
    helped = first.replace(
        on_policy=np.where(np.arange(12) == 5, 0, first.on_policy)
    )  # the success of prompt 1 is a demonstration
    assert unsolved(helped).tolist()[:3] == [True, True, True]
    broken = first.replace(valid=np.where(np.arange(12) < 4, 0, first.valid))
    assert unsolved(broken).tolist()[:3] == [False, False, True]


def test_guide_trains_whole_groups_under_the_plain_prompt():
    piece, first = source.guide(hint=1.0), scored(FAILED, more=4)
    assert piece.again.plain and piece.off_policy
    edit = edited(piece, first, 2)
    assert shown(edit) == [[1, 2, 3, 0, 1, 2, 3], [21, 22, 23]]
    assert merged(piece, first, edit, right=(1,), each=G)[0] == [[0, 1, 2, 3], KEPT, KEPT]


def test_refine_shows_the_completion_and_its_verdict_and_puts_the_best_one_into_each_group():
    piece = source.refine(right="y", wrong="no", solution=0.5)
    first = scored(FAILED, more=T + 2 + 2)
    assert piece.again.longer(problems(), L, T) == T + 2 + 2 and piece.again.by == "row"
    edit = edited(piece, first, 12)
    np.testing.assert_array_equal(edit.row, [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11])  # the first of each group first
    written = [1000, 1001, 1002, 1003]  # without the token that ends it
    assert shown(edit)[0] == [1, 2, 3, *written, ord("n"), ord("o"), 0, 1]
    assert shown(edit)[4][-2:] == [ord("y"), 100]  # row 5 was right
    got, out = merged(piece, first, edit, right=(3, 9), each=1)  # refinements of rows 1 and 3
    assert got == [[-1, -1, -1, 3], [-1, -1, -1, 1], [-1, -1, -1, 2]]
    assert out.reward[3] == 1
    few = edited(source.refine(share=0.25), first, 3)
    np.testing.assert_array_equal(few.row, [0, 4, 8])


def test_reflect_decomposes_and_where_that_fails_reflects_and_keeps_what_is_right():
    piece, first = source.reflect(decompose="d", reflect="re"), scored(FAILED, more=T + 2)
    edit = edited(piece, first, 4)
    written = [1000, 1001, 1002, 1003]
    assert shown(edit)[:2] == [[1, 2, 3, ord("d")], [1, 2, 3, *written, ord("r"), ord("e")]]
    got, _ = merged(piece, first, edit, right=(2, 5, 6, 13), each=G)
    assert got == [[-1, -1, -1, 2], KEPT, [-1, -1, -1, 13]]  # prompt 0 was decomposed, prompt 2 reflected
    assert merged(piece, first, edit, right=(4, 7), each=G)[0][0] == [-1, -1, 4, 7]


def test_explained_puts_what_is_right_in_sight_of_the_solution_into_every_group():
    piece, first = source.explained(text="!"), scored(FAILED, more=T)
    edit = edited(piece, first, 3)
    assert shown(edit) == [[1, 2, 3, 0, 1, 2, 3, 33], [12, 13, 100, 101, 33], [21, 22, 23, 33]]
    assert merged(piece, first, edit, right=(1,), each=1)[0] == [KEPT, [-1, -1, -1, 1], KEPT]


def test_the_scaffold_differs_in_the_group_and_fades_with_the_step():
    piece, first = source.scaffold(steps=100, steepness=10.0), scored(FAILED, more=4)
    pool = piece.init(first, problems())
    counts = []
    for step in (0, 100):
        edit = edited(piece, first, P * G, lengths=(5, 5, 5), pool={"step": jnp.int32(step)})
        counts.append([0 if t is None else len(t) - 3 for t in shown(edit)[:G]])
    fade = 1 / (1 + math.exp(10 * (0 - 0.2))), 1 / (1 + math.exp(10 * (1 - 0.2)))
    assert counts == [[int(4 * (3 - i) / 3 * f) for i in range(4)] for f in fade]
    assert counts == [[3, 2, 1, 0], [0, 0, 0, 0]]
    assert piece.observe(pool, {})["step"] == 1
    got, _ = merged(piece, first, edited(piece, first, P * G, lengths=(5, 5, 5), pool=pool), right=(), each=1)
    assert got == [[0, 1, 2, -1], [4, 5, 6, -1], [8, 9, 10, -1]]


def test_templates_take_turns_in_the_group():
    piece, first = source.templates(("", "a", "bc")), scored(FAILED, more=2)
    edit = edited(piece, first, P * G)
    assert shown(edit)[:G] == [None, [1, 2, 3, ord("a")], [1, 2, 3, ord("b"), ord("c")], None]
    assert merged(piece, first, edit, right=(), each=1)[0] == [[-1, 1, 2, -1], [-1, 5, 6, -1], [-1, 9, 10, -1]]
    sampled = first.replace(valid=np.repeat([1.0, 0.0], [G, (P - 1) * G]))
    np.testing.assert_array_equal(edited(piece, sampled, P * G).used[G:], False)


def test_conditioned_asks_for_the_best_and_trains_under_what_the_row_is():
    piece, first = source.conditioned(("a", "b", "c")), scored(FAILED, more=1)
    pool = piece.init(first, problems())
    edit = edited(piece, first, P * G, pool=pool)
    assert shown(edit)[0] == [1, 2, 3, ord("c")] and edit.used.all()
    _, rows = merged(piece, first, edit, right=(), each=1)
    reward = np.array([0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 9], np.float32)  # 9: a row that does not count
    rows = rows.replace(reward=reward, valid=np.where(reward < 9, 1.0, 0.0).astype(np.float32))
    after, _ = jax.device_get(jax.jit(lambda r: piece.select(r, pool, 12, jax.random.key(0)))(rows))
    # of rows with 1, 2 are lower and 5 higher: 3 * 2 / 7 < 1
    texts = ["a"] * 2 + ["a"] * 4 + ["c"] * 5
    assert [chr(t[-1]) for t in after.context.train_token[:11]] == texts
    assert [chr(t[-1]) for t in after.context.token[:11]] == ["c"] * 11
    np.testing.assert_array_equal(after.context.train_token[:, :-1], after.context.token[:, :-1])
    np.testing.assert_array_equal(after.on_policy[:11], [t == "c" for t in texts])
    for texts, message in ((("a",), "at least two"), (("a", "bb"), r"have \[1, 2\] tokens: expected equally many")):
        with pytest.raises(ValueError, match=message):
            source.conditioned(texts).init(first, problems())


def test_statistics_of_prompts_are_those_of_the_first_pass():
    first = scored(FAILED, more=4)
    after = first.replace(
        reward=np.where(np.arange(12) < 4, 1, first.reward),
        extra={
            "pass": np.where(np.arange(12) < 4, 1.0, 0.0),
            "first_reward": first.reward,
            "first_outcome": np.where(np.arange(12) == 0, types.Outcome.CRASHED, first.outcome),
        },
    )
    tally = jax.jit(groups.tally)
    before, seen = tally(first), tally(after)
    np.testing.assert_array_equal(seen.wins, before.wins)
    np.testing.assert_array_equal(seen.count[:3], [3, 4, 4])


# --- help in the prompt, verdicts of the policy, pairs --------------------------------


def test_a_hint_in_the_prompt_is_withdrawn_along_a_schedule():
    first = scored(FAILED, more=5)
    edit = edited(source.hinted(0.5, text="?"), first, P * G)
    assert shown(edit)[::G] == [[1, 2, 3, 63, 0, 1], [12, 13, 63, 100], [21, 22, 23, 63]]
    assert not source.hinted().again.plain and merged(source.hinted(), first, edit, (), 1)[0][1] == [4, 5, 6, 7]
    less = source.hinted(share=schedule.linear(1.0, 0.0, 2))
    pool, seen = less.init(first, problems()), []
    run = jax.jit(lambda pool, rows, full: less.again.edit(pool, problems(), rows, full, 2, jax.random.key(0)))
    for _ in range(3):
        seen.append([0 if t is None else len(t) - 3 for t in shown(jax.device_get(run(pool, first, solutions())))])
        pool = less.observe(pool, {})
    assert seen == [[4, 4], [2, 2], [0, 0]]
    wide = types.Rollout(mask=np.ones((400, 1)), reward=np.zeros(400), group=np.arange(400) // 2, valid=np.ones(400))
    wide = wide.replace(context=types.Context(np.ones((400, 3), int), np.ones((400, 3))))
    full = types.Action(np.ones((400, 2), int), length=np.full(400, 2))
    used = source.hinted(1.0, chance=0.25).again.edit((), problems(), wide, full, 400, jax.random.key(1)).used
    used = np.asarray(used).reshape(200, 2)
    assert np.array_equal(used[:, 0], used[:, 1]) and abs(used.mean() - 0.25) < 5 * math.sqrt(0.1875 / 200)


def test_the_policys_own_verdict_takes_the_place_of_the_reward():
    piece = source.self_judged(("no", "hm", "yes"), text="?", samples=2)
    first = scored(FAILED, more=T + 1)
    edit = edited(piece, first, P * G)
    assert shown(edit)[0] == [1, 2, 3, 1000, 1001, 1002, 1003, 63]  # the completion without its end
    said = [list(map(ord, word)) for word in ("yes", "no", "hm", "hm", "yess", "ye", "yes", "yes")]
    token, length = np.zeros((P * G * 2, T), int), np.full(P * G * 2, 3)
    for row, word in enumerate(said):
        token[row, : len(word)], length[row] = word, len(word) + 1
    second = scored(np.zeros(P * G * 2), second=1).replace(action=types.Action(token, length=length))
    out = merge_of(piece)(first, second, edit)
    np.testing.assert_allclose(out.reward, [0.5, 0.5, 0.0, 1.0] + [0.0] * 8)
    np.testing.assert_array_equal(out.outcome, first.outcome)
    np.testing.assert_array_equal(out.action.token, first.action.token)
    with pytest.raises(ValueError, match="at least two"):
        source.self_judged(("yes",))
    with pytest.raises(ValueError, match="verdict 'maybe' has 5 tokens; a completion has room for 4"):
        edited(source.self_judged(("yes", "maybe")), first, P * G)


pair = jax.jit(lambda rows: prepare.best_and_worst().apply(rows, None, (), jax.random.key(0))[0])


def preferred(rows):
    rows = jax.device_get(pair(rows))
    return rows.extra["preference"].reshape(P, G).tolist(), rows


def test_a_guided_second_attempt_is_preferred_to_the_first_one_under_the_plain_prompt():
    first = scored(FAILED, more=T + 2 + 2)
    first = first.replace(context=first.context.replace(train_token=np.arange(P * G)[:, None]))
    assert preferred(first)[0] == [[0] * 4, [-1, 1, 0, 0], [0] * 4]
    again = source.refine(wrong="no", solution=0.5)
    edit = edited(again, first, P * G)
    second = scored(np.eye(P * G)[6], second=1).replace(  # of row 2, after its verdict and half of the solution
        group=first.group[edit.row],
        context=types.Context(edit.token, edit.mask, train_token=np.asarray(first.context.train_token)[edit.row]),
    )
    pairs, rows = preferred(merge_of(again)(first, second, edit))
    assert pairs[0] == [-1, 0, 0, 1] and pairs[2] == [0] * 4
    np.testing.assert_array_equal(rows.extra["pass"].reshape(P, G)[0], [0, 0, 0, 1])
    np.testing.assert_array_equal(rows.context.train_token[:4, 0], [0, 1, 2, 2])  # what is trained on
    explained = source.explained()
    edit = edited(explained, first, P)
    second = scored([1, 1, 0], second=1).replace(
        group=first.group[edit.row],
        context=types.Context(edit.token, edit.mask, train_token=np.asarray(first.context.train_token)[edit.row]),
    )
    assert preferred(merge_of(explained)(first, second, edit))[0] == [[-1, 0, 0, 1], [-1, 1, 0, 0], [0] * 4]


def test_gamma_may_be_a_quantile_of_the_ratios_of_hinted_rows():
    rho = np.array([[0.5, 2.0], [0.1, 0.3], [0.2, 0.4]])
    rows = types.Rollout(
        mask=np.array([[1.0, 1], [1, 1], [1, 0]]),
        reward=np.zeros(3),
        group=np.zeros(3, int),
        behaviour_logp=np.full((3, 2), -2.0),
        on_policy=np.array([1.0, 0, 0]),
    )
    scores = types.Scores(logp=jnp.asarray(np.log(rho) - 2.0))
    piece = ratio.shaped_by_quantile(0.5)
    limited, _ = piece.statistics[0].apply(rows, scores, (), jax.random.key(0))
    np.testing.assert_allclose(limited.extra["soft_limit"], 0.2, rtol=1e-5)  # of 0.1, 0.3 and 0.2
    got = piece.apply(types.Loss(), limited, scores, (), jax.random.key(0))
    np.testing.assert_allclose(np.exp(got.log_ratio)[rows.mask > 0], (rho / (rho + 0.2))[rows.mask > 0], rtol=1e-5)
    nobody, _ = piece.statistics[0].apply(rows.replace(on_policy=np.ones(3)), scores, (), jax.random.key(0))
    np.testing.assert_array_equal(nobody.extra["soft_limit"], 1.0)


# --- groups of unequal sizes ----------------------------------------------------------


SIZES = (2, 6, 4)


def unequal(reward, more=0):
    of = np.repeat(np.arange(P), SIZES)
    return scored(reward, more=more).replace(group=7 + of, index=20 + of)


def test_a_group_takes_as_many_rows_of_a_second_pass_as_it_has_and_nothing_is_left_over():
    piece, first = source.ghpo(), unequal([0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0], more=4)
    edit = edited(piece, first, 6)
    np.testing.assert_array_equal(edit.row, [0] * 3 + [2] * 3)
    right = np.isin(np.arange(6 * G), (2, 5, 13)) * 1.0  # row 2 would be the third of a group of two
    of = np.repeat(edit.row, G)
    again = scored(right, second=1).replace(
        group=first.group[of], index=first.index[of], context=types.Context(*(x[of] for x in (edit.token, edit.mask)))
    )
    again = again.replace(context=types.Context(np.repeat(edit.token, G, axis=0), np.repeat(edit.mask, G, axis=0)))
    out = jax.device_get(merge_of(piece)(first, again, edit))
    number = (out.action.token[:, 0] - 2000) // 10
    kept = np.array([4, 5, -1, -1, 12, 13, 14, 15, -1, -1, -1, -1])
    np.testing.assert_array_equal(np.where(kept >= 0, number, -1), kept)
    np.testing.assert_array_equal(out.valid, [1, 1, 0, 0] + [1] * 8)  # two rows of the plain prompt are left out
    np.testing.assert_array_equal(out.mask.any(axis=1), out.valid)
    np.testing.assert_array_equal(out.action.token[8:], first.action.token[8:])
    np.testing.assert_array_equal(out.group, first.group)
    seen = {"first_reward": first.reward, "first_outcome": first.outcome}
    before, after = (jax.jit(groups.tally)(x) for x in (first, out.replace(extra={**out.extra, **seen})))
    np.testing.assert_array_equal(after.count, before.count)
    np.testing.assert_array_equal(after.wins, before.wins)


def test_rows_of_a_second_pass_never_reach_the_next_group():
    first = unequal(np.zeros(12))
    used = jnp.array([True, True, False])
    edit = types.Edit(np.array([0, 2, 8]), used, first.context.token[:3], first.context.mask[:3])
    second = scored(np.ones(12), second=1)
    out = jax.jit(groups.replaced)(first, second, edit, edit.row[:, None])
    np.testing.assert_array_equal(out.reward, [1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0])
    nobody = first.replace(valid=np.where(np.arange(12) < 2, 0.0, 1.0))  # a place that was not drawn
    np.testing.assert_array_equal(edited(source.explained(), nobody.replace(finish=None), 3).row[:2], [2, 8])


def test_a_scaffold_and_refinements_follow_the_size_of_the_group():
    first = unequal(np.zeros(12), more=T + 4)
    edit = edited(source.scaffold(steps=100), first, 12, lengths=(5, 5, 5), pool={"step": jnp.int32(-1000)})
    shares = [(n - 1 - i) / (n - 1) for n in SIZES for i in range(n)]
    counts = [0 if t is None else len(t) - (3 if i // G != 1 else 2) for i, t in enumerate(shown(edit))]
    assert counts == [math.floor(4 * s + 1e-4) for s in shares]
    piece = source.refine()
    edit = edited(piece, first, 12)
    np.testing.assert_array_equal(edit.row[:6], [0, 2, 8, 1, 3, 9])
    second = scored(np.ones(12), second=1).replace(
        group=first.group[edit.row], context=types.Context(edit.token, edit.mask)
    )
    np.testing.assert_array_equal(np.flatnonzero(merge_of(piece)(first, second, edit).extra["pass"]), [1, 7, 11])


@pytest.mark.full
def test_unequal_samples_and_a_second_pass_by_prompt_in_one_rollout():
    counts = (9, 1, 1, 4, 4, 4, 1, 8)
    step, state, key = contract.step_of(contract.given(samples=counts), source.branched(prompts=1.0))
    rows = jax.device_get(step.rollout(state, key))
    again, written = rows.extra["pass"] > 0, rows.mask + rows.extra["head"]
    assert [int(np.sum(rows.group == g)) for g in range(8)] == list(counts)
    sizes = []
    for g in range(8):
        mine, used = rows.group == g, (rows.group == g) & (rows.valid > 0)
        assert len(set(rows.index[mine])) == 1 and len(set(again[mine])) == 1  # a group is of one pass
        if again[mine][0]:
            sizes.append(counts[g])
            assert len(set(rows.extra["first_reward"][mine])) == 1 and used.sum() == min(counts[g], 4)
            length = rows.extra["head"][used].sum(axis=1)
            assert len(set(length)) == 1 and np.all(rows.action.token[used][:, 0] == rows.action.token[used][0, 0])
        else:
            assert used.all() or used.sum() == counts[g]
    assert min(sizes) < 4 < max(sizes)
    verdict = step.setup.verify(rows.index, "train", rows.action.token, written)
    np.testing.assert_array_equal(rows.reward[rows.valid > 0], np.asarray(verdict.reward)[rows.valid > 0])
