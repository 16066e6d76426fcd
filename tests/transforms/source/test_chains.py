"""Pieces behind one another: whose rows a piece reads, which groups they are, and what a phase begins with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.config import schema
from rljax.methods.source import balances, budgets, conditions, experience, forks, memory, store
from rljax.run import programs
from rljax.training import states
from rljax.transforms import ops, schedule, source, trajectories
from rljax.transforms.source import chain, groups, plain
from tests.methods.memories_cases import KEY, batch, problems
from tests.support import tiny


def ran(pieces, *steps, count=None):
    """Return what a chain selects of each batch, the last one's pool too."""
    joined = chain.chain(pieces)
    pool, out = joined.init(jax.tree.map(jnp.zeros_like, steps[0]), problems()), []
    for rows in steps:
        rows, pool = joined.select(jax.tree.map(jnp.asarray, rows), pool, count or rows.reward.size, KEY)
        out.append(rows)
    return out, pool


def means(rows):
    """Return the mean reward of each row's group, over trajectories that count."""
    once = trajectories.once(rows)
    return np.asarray(ops.segment_mean(rows.reward, rows.group, once))


def test_replayed_groups_stay_groups_of_one_prompt_in_pieces_that_follow():
    fresh = [[1, 1, 1, 0], [1, 1, 1, 0], [1, 0, 0, 0], [1] * 4], [[1] * 4, [1] * 4, [1, 0, 0, 0], [1] * 4]
    steps = [batch([4 * n, 4 * n + 1, 4 * n + 2, 4 * n + 3], reward, 16 * n) for n, reward in enumerate(fresh)]
    for rows in ran([memory.replay(0.25, 1), source.dynamic(2)], *steps, count=8)[0]:
        group, index = np.asarray(rows.group), np.asarray(rows.index)
        for number in set(group):
            assert len(set(index[group == number])) == 1
        want = [rows.reward[index == i].mean() for i in index]
        counts = np.asarray(rows.valid) > 0
        np.testing.assert_allclose(means(rows)[counts], np.asarray(want)[counts])


def test_replayed_episodes_are_not_those_of_fresh_groups():
    pieces = [source.dynamic(1), memory.replay(0.5, 1)]
    steps = batch([0, 1], [[1, 0], [1, 0]]), batch([2, 3], [[1, 1], [1, 0]], 4)
    (_, rows), _ = ran(pieces, *steps)
    assert len(set(np.asarray(rows.episode))) == 4
    np.testing.assert_allclose(means(rows), 0.5)


def test_a_schedule_of_a_source_begins_anew_with_a_phase_that_keeps_its_pool():
    c = tiny.config("grpo(kl=0.0)", seam__source="prefixed(linear(0.8, 0.0, 3))")
    c.phases = ("warm", "main")
    c.phase.warm = schema.phase(steps=3, warmup=1)
    warm, main = programs.build(c, devices=jax.devices()[:1]).steps
    state = warm.begin(None, jax.random.key(0))
    state = state.replace(pool=warm.setup.algorithm.source.observe(state.pool, {}))
    assert state.pool["numbers"]["share"] == 1
    carried = states.carried(main.setup, warm.setup, jax.eval_shape(lambda x: x, state))
    assert carried.pool
    assert states.begin(main.setup, carried, state, jax.random.key(0)).pool["numbers"]["share"] == 0


def test_a_schedule_that_a_function_without_a_pool_reads_is_refused():
    with pytest.raises(ValueError, match=r"hindsight: share cannot be a schedule; relabel reads it"):
        memory.hindsight(schedule.linear(0.0, 1.0, 2))


def test_a_charge_of_a_kl_is_no_success_of_a_prompt():
    rows = batch([0, 1], [[0, 0], [0, 1]], token_reward=np.full((4, 3), 0.1, np.float32))
    rows = rows.replace(extra={"paid": np.zeros((4, 3), np.float32)})
    np.testing.assert_array_equal(groups.tally(rows).wins[:2], [0, 1])
    np.testing.assert_allclose(trajectories.spread(rows), [0, 0, 0.5, 0.5])


def test_what_draws_prompts_by_results_is_written_before_what_leaves_rows_out():
    with pytest.raises(ValueError, match=r"dynamic\(.*select among rows that mopps.*reads\. Write mopps.* before it"):
        chain.chain([source.dynamic(2), source.mopps()])
    chain.chain([source.mopps(), source.dynamic(2)])
    for late in (memory.arpo(), experience.base_samples(1), experience.unsolved()):
        for early in (source.dynamic(2), budgets.adaptive()):
            with pytest.raises(ValueError, match=r"select among rows that .* reads\. Write .* before it"):
                chain.chain([early, late])
        chain.chain([late, source.dynamic(2)])
        chain.chain([source.mopps(), late])
    with pytest.raises(ValueError, match=r"replay\(.*balanced\(.*both store groups of earlier steps"):
        chain.chain([memory.replay(0.25, 1), balances.balanced(0.25, 0.75, 2)])
    chain.chain([conditions.conditioned(("a", "b")), memory.replay(0.25, 1)])  # whose pool is no group
    with pytest.raises(ValueError, match=r"rows that arpo\(.*has stored have no 'cut_reward' of the second pass"):
        chain.chain([forks.vine(2, 3), memory.arpo()])


def test_rows_that_differ_in_their_fields_do_not_take_the_place_of_one_another():
    rows = batch([0, 1], [[1, 0], [1, 0]])
    more = rows.replace(advantage=rows.mask)
    for one, other in ((more, rows), (rows, more)):
        with pytest.raises(ValueError, match=r"\.advantage is in the rows of this step or in those in their place"):
            groups.put(jnp.ones(4, bool), one, other)
    kept = store.empty(rows.replace(parts={"gap": rows.reward}), 4)
    with pytest.raises(ValueError, match="rows to store have no 'gap': write the piece that stores them before"):
        store.put(kept, rows, jnp.ones(4, bool), jnp.ones(4))
    assert "mask 0" in str(jax.tree.map(lambda x: "float32[4]", rows))  # texts in place of arrays, of another message


def test_demonstrations_of_weak_groups_leave_stored_rows_as_they_are():
    shown = np.array([1, 1, 0, 1, 1, 0], np.float32)  # the last sample of a group is a demonstration
    steps = [batch([0, 1], [[1, 1, 1], [1, 0, 1]], n).replace(on_policy=shown) for n in (0, 6)]
    (_, rows), _ = ran([memory.rlep(1), plain.guided_below(0.5)], *steps)
    np.testing.assert_array_equal(rows.on_policy, [1, 0, 0, 1, 0, 0])
    np.testing.assert_array_equal(rows.valid, [1, 1, 0, 1, 1, 0])


def test_a_group_that_does_not_count_gets_no_stored_success():
    steps = batch([0, 1], [[1, 0], [1, 0]]), batch([0, 1], [[1, 1], [0, 1]], 4)
    (_, rows), _ = ran([source.dynamic(1), memory.rlep(1)], *steps)
    np.testing.assert_array_equal(rows.valid, [1, 1, 0, 0])  # the group of spread first
    np.testing.assert_array_equal(rows.on_policy, [1, 0, 1, 1])


def test_a_group_without_a_valid_row_is_not_balanced():
    stored = batch([0, 1, 2, 3], [[1, 0]] * 4)
    empty = batch([4, 5, 6, 7], [[0, 0]] * 4, 8, valid=np.zeros(8))
    (_, rows), _ = ran([balances.balanced(0.0, 0.75, 2)], stored, empty, count=4)
    assert set(np.asarray(rows.index)) == {2, 3} and np.all(np.asarray(rows.valid) == 1)
