"""Partial rollouts: segments equal one piece, each token by the policy of its step, no prompt is lost or repeated."""

import dataclasses
import functools
import itertools
import types as standard

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import sampling, types
from rljax.config import compatible, resolve
from rljax.training import phases
from rljax.training import rows as rows_lib
from rljax.transforms import source
from rljax.transforms.source import chain
from tests.sampling import sampling_cases as samplers
from tests.support import drawing, tiny

LONG = "arithmetic(operands=2, digits=2, working=False, noise=0.3)"
SMALL = {"model__width": 8, "model__heads": 1, "model__hidden": 8}
FLOATS = ("behaviour_logp", "raw_logp", "entropy", "square_prob")


# --- the sampler: a cut changes nothing -----------------------------------------------------------------


def continued(model, settings, **options):
    return jax.jit(functools.partial(sampling.resume, model, **drawing.arguments(pad=0, **settings, **options)))


TOY, TRANSFORMER = samplers.TOY, samplers.TRANSFORMER
TEXTS = {TOY: ((1, 2, 2), (0,), (2, 1)), TRANSFORMER: samplers.TEXTS}


@pytest.mark.default_tier("model1-True-2-2")
@pytest.mark.parametrize(
    ("model", "filtered", "segment", "compact"),
    [(TOY, False, 1, 0), (TOY, True, 2, 2), (TOY, True, 9, 0), (TRANSFORMER, False, 4, 0), (TRANSFORMER, True, 2, 1)],
)
def test_a_rollout_cut_anywhere_is_the_rollout_uncut(model, filtered, segment, compact):
    prompts, keys = samplers.prompts_of(*TEXTS[model], width=5), samplers.keys_for(3, 3, seed=2)
    params = jnp.asarray(samplers.TABLE, jnp.float32) if model is TOY else samplers.parameters()
    settings = samplers.FILTERED | {"top_k": 2 if model is TOY else 20} if filtered else samplers.OFF
    shape = samplers.SHAPE | {"stop": (0,) if model is TOY else samplers.SHAPE["stop"]}
    whole = samplers.draw(params, prompts, keys, settings, model=model, **shape)
    assert len(set(whole.mask.sum(axis=1))) > 2 and set(whole.finish) == {types.Finish.STOP, types.Finish.LENGTH}
    run = continued(model, settings, segment=segment, stop=shape["stop"], compact=compact)
    cut = jax.tree.map(lambda x: jnp.full_like(x, 1), whole)  # what stands in fresh rows must not matter
    for number in range(-(-6 // segment)):
        before = 0 if number == 0 else cut.mask.sum(axis=1)
        assert number == 0 or np.any(cut.finish == types.Finish.UNFINISHED)
        cut = run(params, prompts, keys, cut, jnp.full(whole.finish.shape, number == 0))
        assert (cut.mask.sum(axis=1) - before).max() <= segment
    for name in ("token", "mask", "finish", "kept"):
        jax.tree.map(np.testing.assert_array_equal, getattr(cut, name), getattr(whole, name))
    for name in FLOATS:
        np.testing.assert_allclose(getattr(cut, name), getattr(whole, name), atol=1e-5)


@pytest.mark.full
def test_rows_that_have_ended_stay_as_they_are():
    prompts, keys = samplers.prompts_of(*TEXTS[TOY], width=3), samplers.keys_for(3, 3)
    whole = samplers.draw(samplers.TABLE, prompts, keys, samplers.OFF, samples=3)
    run = continued(TOY, samplers.OFF, segment=2, stop=())
    again = run(-jnp.asarray(samplers.TABLE), prompts, keys, whole, jnp.zeros(9, bool))
    assert again.steps == 1  # nobody was decoded
    jax.tree.map(np.testing.assert_array_equal, dataclasses.replace(again, steps=whole.steps, slots=whole.slots), whole)


def test_resume_refuses_wrong_counts():
    prompts, keys = samplers.prompts_of(samplers.PROMPT, width=2), samplers.keys_for(1, 2)
    whole = samplers.draw(samplers.TABLE, prompts, keys, samplers.OFF, samples=2)
    run = functools.partial(sampling.resume, samplers.TOY, samplers.TABLE, prompts, **drawing.arguments())
    with pytest.raises(ValueError, match=r"shape \(1,\) but expected \(2\).*keys"):
        run(keys[:1], whole, jnp.ones(2, bool), segment=1)
    with pytest.raises(ValueError, match="segment = 0"):
        run(keys, whole, jnp.ones(2, bool), segment=0)


@pytest.mark.parametrize("compact", [pytest.param(0, marks=pytest.mark.full), 1])
def test_the_rows_are_cut_when_enough_groups_have_ended(compact):
    prompts, keys = samplers.prompts_of(*TEXTS[TOY], width=5), samplers.keys_for(3, 4)
    params, settings = jnp.asarray(samplers.TABLE, jnp.float32), samplers.OFF
    whole = samplers.draw(params, prompts, keys, settings, model=TOY, samples=4, length=12, stop=(0,))
    run = continued(TOY, settings, segment=99, stop=(0,), compact=compact)
    cut, length = whole, whole.mask.sum(axis=1)
    longest = np.sort(length.reshape(3, 4).max(axis=1))  # tokens after which each group has ended
    assert longest[0] < longest[1] < longest[2]
    for enough in (1, 2, 3):
        cut = run(params, prompts, keys, cut, jnp.full(12, enough == 1), enough=jnp.int32(enough))
        np.testing.assert_array_equal(cut.mask.sum(axis=1), np.minimum(length, longest[enough - 1]))
        going = (cut.finish == types.Finish.UNFINISHED).reshape(3, 4)
        assert np.sum(~going.any(axis=1)) == enough
    np.testing.assert_array_equal(cut.finish, whole.finish)
    np.testing.assert_array_equal(cut.token * cut.mask, whole.token * whole.mask)


# --- the source: which groups are trained on -------------------------------------------------------------


@pytest.mark.full
def test_complete_groups_alone_are_taken_oldest_first():
    rows = 12  # six groups of two, in the places of the pool
    group = jnp.repeat(jnp.array([7, 2, 9, 4, 8, 3]), 2)
    finish = jnp.full((rows,), int(types.Finish.STOP)).at[jnp.array([3, 6, 7])].set(int(types.Finish.UNFINISHED))
    finish = finish.at[0].set(int(types.Finish.LENGTH))  # groups 2 and 4 go on
    rollout = types.Rollout(
        mask=jnp.ones((rows, 3)), reward=jnp.arange(rows) * 1.0, group=group, finish=finish, parts={"a": group * 1.0}
    )
    piece = source.partial(segment=3)
    pool = piece.init(rollout, None)
    assert pool["free"].all()
    for count, taken in ((4, [10, 11, 0, 1]), (10, [10, 11, 0, 1, 8, 9, 4, 5])):
        chosen, after = piece.select(rollout, pool, count, jax.random.key(0))
        there = len(taken)
        assert chosen.reward.shape == (count,) and chosen.reward[:there].tolist() == taken
        assert chosen.valid.tolist() == [1] * there + [0] * (count - there)
        assert np.all(chosen.mask[:there] == 1) and np.all(chosen.mask[there:] == 0)
        assert sorted(taken) == np.flatnonzero(after["free"]).tolist()
        np.testing.assert_array_equal(after["rows"].group, group)


def test_a_window_trains_every_row_and_each_token_once():
    """Two groups of two rows of at most 4 tokens, 2 a step; row 1 ends in the first step and waits for row 0."""
    ends = np.array([4, 2, 3, 3])  # tokens of each row; row 0 is cut at the limit
    kind = np.array([types.Finish.LENGTH, *[types.Finish.STOP] * 3])
    piece, total = source.windowed(2), np.zeros((4, 4))
    pool, written = None, np.zeros(4, int)
    for number in range(3):
        written = np.minimum(written + 2, ends) if number < 2 else np.full(4, 2)  # then new prompts everywhere
        mask = (np.arange(4) < written[:, None]) * 1.0
        done = written == ends
        rollout = jax.tree.map(
            jnp.asarray,
            types.Rollout(
                mask=mask,
                reward=np.full(4, 7.0),
                group=np.repeat([0, 1], 2) + 10 * (number == 2),
                finish=np.where(done, kind, int(types.Finish.UNFINISHED)).astype(np.int32),
                outcome=np.full(4, int(types.Outcome.CORRECT), np.int32),
                parts={"format": np.full(4, 7.0)},
            ),
        )
        pool = piece.init(rollout, None) if pool is None else pool
        rows, pool = piece.select(rollout, pool, 4, jax.random.key(0))
        before = np.zeros((4, 4)) if number != 1 else (np.arange(4) < np.array([2, 2, 2, 2])[:, None]) * 1.0
        np.testing.assert_array_equal(rows.extra["used"], before)
        np.testing.assert_array_equal(rows.reward, np.where(done, 7.0, 0.0))
        np.testing.assert_array_equal(rows.parts["format"], rows.reward)
        np.testing.assert_array_equal(rows.outcome == types.Outcome.UNJUDGED, ~done)
        np.testing.assert_array_equal(rows.finish, np.where(done, kind, int(types.Finish.LENGTH)))
        assert rows.valid.tolist() == [1, 0 if number == 1 else 1, 1, 1]
        assert pool["free"].tolist() == [[False] * 4, [True] * 4, [False] * 4][number]
        np.testing.assert_array_equal(pool["rows"].finish, rollout.finish)
        total += mask * (1 - before) * np.asarray(rows.valid)[:, None] * (number < 2)
    np.testing.assert_array_equal(total, np.arange(4) < ends[:, None])


# --- the step ---------------------------------------------------------------------------------------------


def program(segment=2, oversample=2, **fields):
    fields = {"task": LONG, "seam__source": f"partial(segment={segment}, oversample={oversample})"} | fields
    return tiny.program("nsr()", **fields)


@functools.cache
def run(steps=6):
    """Return the program and (state before, rows in flight, metrics) of each step, all on the host."""
    made = program()
    (step,) = made.steps
    state, updates = step.begin(None, made.key), []
    for _ in range(steps):
        before = jax.device_get(state)
        state, metrics = step.fused(state, made.key)
        updates.append((before, *jax.device_get((state.pool["rows"], metrics))))
    updates.append((jax.device_get(state), None, None))
    return made, updates


@pytest.mark.full
def test_the_step_trains_and_carries_over():
    _, updates = run()
    carried = [m["carried"] for _, _, m in updates[:-1]]
    assert max(carried) > 0.2
    assert updates[0][2]["valid_rows"] < 32  # the first rows are not complete yet
    assert updates[-2][2]["valid_rows"] == 32
    assert updates[0][2]["age"] == 0 and 0 < updates[-2][2]["age"] < 6
    assert all(0 < m["slot_utilisation"] <= 1 for _, _, m in updates[:-1])
    assert all(np.isfinite(m["loss"]) for _, _, m in updates[:-1])
    assert updates[-1][0].skipped_total == 0
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), updates[0][0].params, updates[-1][0].params)
    assert min(jax.tree.leaves(moved)) > 0


@pytest.mark.full
def test_the_same_state_gives_the_same_bits():
    made, updates = run()
    (step,) = made.steps
    for before, expected in ((updates[3][0], updates[4][0]), (updates[4][0], updates[5][0])):
        state, _ = step.fused(jax.device_put(before, step.sharding), made.key)
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(state), expected)


@pytest.mark.full
def test_each_token_is_stamped_with_the_version_that_wrote_it():
    made, updates = run()
    setup = made.steps[0].setup
    logp = jax.jit(lambda params, rows: phases.score(setup, "policy", params, rows, types.Needs()).logp)
    mixed = 0
    for number, (before, rows, _) in enumerate(updates[:-1]):
        assert np.all(np.diff(np.where(rows.mask > 0, rows.version, number), axis=1) >= 0)
        written = rows.mask * (rows.version == number)
        assert written.sum(axis=1).max() <= 2 and rows.version[rows.mask > 0].max() == number
        kept = (before.pool["rows"].mask > 0) & ~before.pool["free"][:, None]
        np.testing.assert_array_equal((rows.mask > 0) & (written == 0), kept)
        for name in (*FLOATS, "version"):
            was, now = getattr(before.pool["rows"], name), getattr(rows, name)
            np.testing.assert_array_equal(now[kept], was[kept])
        # the parameters of each version, and no others, reproduce what it reported of its tokens
        for version in range(number + 1):
            written = (rows.mask > 0) & (rows.version == version)
            scored = np.asarray(logp(updates[version][0].params["policy"], rows))
            np.testing.assert_allclose(rows.behaviour_logp[written], scored[written], atol=1e-5)
            older = (rows.mask > 0) & (rows.version < version)
            mixed += np.sum(np.abs(rows.behaviour_logp - scored)[older] > 1e-4)
    assert mixed > 100


def test_no_prompt_is_lost_or_drawn_twice():
    made, updates = run()
    setup, trained = made.steps[0].setup, []
    for (before, rows, metrics), (after, _, _) in itertools.pairwise(updates):
        groups = rows.group[::4]
        assert np.all(rows.group.reshape(-1, 4) == groups[:, None]) and len(set(groups.tolist())) == 16
        free = before.pool["free"][::4]
        assert after.cursor[0] - before.cursor[0] == free.sum()
        assert sorted(groups[free].tolist()) == list(range(before.cursor[0], after.cursor[0]))
        np.testing.assert_array_equal(groups[~free], before.pool["rows"].group[::4][~free])
        done = after.pool["free"][::4]
        assert done.sum() * 4 == metrics["valid_rows"] <= 32
        ended = np.all(rows.finish.reshape(-1, 4) != types.Finish.UNFINISHED, axis=1)
        assert sorted(groups[done]) == sorted(groups[ended])[:8]
        trained += groups[done].tolist()
    flying = updates[-2][1].group[::4][~updates[-1][0].pool["free"][::4]].tolist()
    assert sorted(trained + flying) == list(range(updates[-1][0].cursor[0])) and len(trained) > 16
    # prompt by prompt the order of a plain source
    zero = jnp.zeros((), jnp.int32)
    places = [made.steps[0].shape.replace(cursor=zero[None] + 16 * i) for i in range(6)]
    index = np.concatenate([rows_lib.next_prompts(setup, state, made.key).index for state in places])
    for _, rows, _ in updates[:-1]:
        np.testing.assert_array_equal(rows.index, index[rows.group])


@pytest.mark.full
def test_a_row_is_that_of_a_plain_rollout_in_the_step_it_started():
    made, _ = run()
    (step,) = made.steps
    state = step.begin(None, made.key)
    frozen, plain, compared = jax.device_get(state.params), {}, 0
    for number in range(5):
        chosen = step.next_prompts(state, made.key)
        prompts = step.setup.task.prompts(chosen.index, "train")
        drawn = jax.device_get(step.sample(frozen["policy"], (), state.step, chosen, prompts, None, made.key))
        before = int(state.cursor[0])
        state, _ = step.fused(state.replace(params=jax.device_put(frozen, step.sharding.params)), made.key)
        plain |= {p: drawn.action.token[drawn.group == p] for p in range(before, int(state.cursor[0]))}
        rows = jax.device_get(state.pool["rows"])
        for group in set(rows.group[(rows.version[:, 0] > 0) & (rows.finish != types.Finish.UNFINISHED)].tolist()):
            ended = rows.finish[rows.group == group] != types.Finish.UNFINISHED
            np.testing.assert_array_equal(rows.action.token[rows.group == group][ended], plain[group][ended])
            compared += np.sum(np.any(rows.version[rows.group == group] == number, axis=1) & ended)
    assert compared > 20


@pytest.mark.full
def test_rows_given_all_their_tokens_at_once_are_those_of_the_plain_source():
    states = []
    for made in (program(segment=64, oversample=1), program(seam__source="task()")):
        (step,) = made.steps
        state = step.begin(None, made.key)
        for _ in range(2):
            state, metrics = step.fused(state, made.key)
        states.append(jax.device_get((state, metrics)))
    (segments, metrics), (plain, others) = states
    assert segments.cursor[0] == plain.cursor[0] == 16
    np.testing.assert_array_equal(metrics["rows"].action.token, others["rows"].action.token)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), segments.params, plain.params)
    np.testing.assert_allclose([metrics["loss"], metrics["age"]], [others["loss"], 0], atol=1e-5)


@pytest.mark.full
def test_april_stops_at_the_last_group_of_a_batch_and_continues_the_others():
    task = LONG.replace(")", ", completion_length=48)")  # of a policy that ends a row at any token
    made = program(seam__source="april(oversample=2)", task=task, seed=1, **SMALL)
    (step,) = made.steps
    state, before = step.begin(None, made.key), np.zeros(64)
    select = jax.jit(step.setup.algorithm.source.select, static_argnums=2)
    for number in range(3):
        rows = step.rollout(state, made.key)
        batch, pool = select(rows, state.pool, 32, made.key)
        new = np.asarray(rows.mask).sum(axis=1) - before
        going = np.any((rows.finish == types.Finish.UNFINISHED).reshape(-1, 4), axis=1)
        assert np.sum(batch.valid) == 32 == np.sum(pool["free"]) and 0 < np.sum(going) <= 8
        assert np.all(new.reshape(-1, 4).max(axis=1)[going] == new.max())  # all were cut in one position
        before = np.where(pool["free"], 0, np.asarray(rows.mask).sum(axis=1))
        state = state.replace(pool=pool, step=state.step + 1, cursor=state.cursor + (16, 8, 8)[number])


@pytest.mark.full
def test_t_ppo_trains_on_rows_that_go_on():
    sizes = {"batch__prompts": 32, "batch__samples": 1, "log__rollout_rows": 32, **SMALL}
    made = tiny.program("t_ppo(window=2)", task=LONG, **sizes)
    (step,) = made.steps
    state, seen = step.begin(None, made.key), np.zeros(0)
    for number in range(2):
        state, metrics = step.fused(state, made.key)
        rows, pool = jax.device_get((metrics["rows"], state.pool))
        new = rows.mask * (1 - rows.extra["used"])
        np.testing.assert_array_equal(new, rows.mask * (rows.version == number))  # the tokens of this step alone
        cut = pool["rows"].finish == types.Finish.UNFINISHED
        last = new * (np.cumsum(rows.mask, axis=1) == rows.mask.sum(axis=1, keepdims=True))
        assert np.all(rows.reward[cut] == 0) and np.all(rows.valid == 1)
        # at the cut of a row that goes on, delta is gamma V - V = 0, and it is its last token's return that is V
        np.testing.assert_allclose((rows.returns * last)[cut], (rows.value * last)[cut], atol=1e-5)
        seen = np.append(seen, cut.mean())
        assert np.isfinite(metrics["loss"]) and metrics["skipped"] == 0
    assert seen.max() > 0.2
    assert rows.extra["used"].sum() > 0


def test_the_source_is_refused_where_the_host_judges():
    host = standard.SimpleNamespace(host=True, name="judged", parts=())
    phase = dataclasses.replace(program().phases[-1], task=host)
    with pytest.raises(
        ValueError, match=r"partial\(segment=2, oversample=2\) carries rows over .*'judged' is scored on"
    ):
        compatible._source(phase)


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (
            (source.mopps(), source.partial(2)),
            r"mopps\(.* would select among rows that go on. Write partial\(.* before",
        ),
        ((source.replay(), source.april()), r"replay\(.* would select among rows that go on"),
        ((source.windowed(2), source.dynamic(2)), r"windowed\(.* trains on rows that go on, among which dynamic\("),
        ((source.partial(2), source.guided()), r"partial\(.* so guided\(demonstrations=1\) can take the place of none"),
    ],
)
def test_no_piece_selects_among_rows_that_go_on(pieces, message):
    with pytest.raises(ValueError, match=message):
        chain.chain(pieces)
    assert chain.chain((source.partial(2), source.mopps(), source.dynamic(2))).segment == 2


def test_windows_need_an_algorithm_that_drops_used_tokens_and_has_no_group_baseline():
    fields = {"phases": ("main",), "seam__source": "windowed(2)"}
    with pytest.raises(ValueError, match=r"windowed\(.* which reinforce\(.* train on again. Add .*drop_used"):
        resolve.phases(tiny.config("reinforce()", **fields))
    with pytest.raises(ValueError, match=r"grpo\(.* compares the samples of a prompt, and samples of windowed\("):
        resolve.phases(tiny.config("grpo(kl=0.0)", **fields, seam__prepare="+ drop_used()"))
    resolve.phases(tiny.config("reinforce()", **fields, seam__prepare="+ drop_used()"))
