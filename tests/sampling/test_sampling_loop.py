"""The sampler against exact enumeration, NumPy oracles and teacher-forced re-scoring: the loop."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import sampling, types
from tests.sampling.sampling_cases import (
    OFF,
    PAD,
    PROMPT,
    SETTINGS,
    STOP,
    TABLE,
    TOY,
    draw,
    keys_for,
    prompts_of,
    toy_extend,
)
from tests.support import drawing


def root(seed: int) -> types.Key:
    return jax.random.key(seed, impl="threefry2x32")


def counted(calls: list[int]):
    """Make a toy policy that appends the rows of every ``extend`` that really runs to ``calls``."""

    def extend(params, token, mask, cache):
        jax.debug.callback(lambda: calls.append(token.shape[0]))
        return toy_extend(params, token, mask, cache)

    return TOY._replace(extend=extend)


@pytest.mark.parametrize(
    ("texts", "stop", "steps", "ends"),
    [
        # Greedy on five states: from state s token 1 (+ 2) until state 0, where token 0.
        (((1, 1, 0), (3,)), (STOP,), 3, (1, 3)),  # states 0 and 4: ends at once; 4, 1, 3, 0 is past three tokens
        (((1, 1, 0), (1, 1, 0)), (STOP,), 1, (1, 1)),
        (((1, 1, 0), (2,)), (STOP,), 2, (1, 2)),  # state 3: 1, then 0
        (((2,), (2,)), (7, 1), 1, (1, 1)),
        (((2,), (2,)), (), 40, (40, 40)),
    ],
)
def test_the_loop_ends_when_every_row_has(texts, stop, steps, ends):
    table = np.array([[1.0, 0, 0]] + [[0, 1.0, 0]] * 4)
    calls: list[int] = []
    sample = draw(
        table,
        prompts_of(*texts, width=3),
        keys_for(2, 1),
        OFF | {"temperature": 0.0},
        model=counted(calls),
        stop=stop,
        length=3 if steps == 3 else 40,
    )
    jax.effects_barrier()
    assert sample.steps == steps
    assert calls == [2] * (steps - 1)  # nothing after the last token
    np.testing.assert_array_equal(sample.mask.sum(axis=1), ends)
    for row, end in enumerate(ends):
        stopped = int(sample.token[row, end - 1]) in stop
        assert sample.finish[row] == (types.Finish.STOP if stopped else types.Finish.LENGTH)


def test_a_draw_depends_on_its_own_key_and_prompt_only():
    texts = ((1, 2, 2), (0,), (2, 1))
    keys = keys_for(3, 4)
    whole = draw(TABLE, prompts_of(*texts, width=3), keys, SETTINGS[2], samples=4, length=6)
    for p, text in enumerate(texts):
        group = slice(4 * p, 4 * p + 4)
        alone = draw(TABLE, prompts_of(text, width=8), keys[group], SETTINGS[2], samples=4, length=6)
        for name in ("token", "mask", "behaviour_logp", "raw_logp", "entropy", "finish"):
            np.testing.assert_array_equal(getattr(whole, name)[group], getattr(alone, name))
    order = np.array([2, 0, 1])
    mixed_keys = keys.reshape(3, 4)[order].reshape(12)
    mixed = draw(TABLE, prompts_of(*(texts[p] for p in order), width=3), mixed_keys, SETTINGS[2], samples=4, length=6)
    np.testing.assert_array_equal(mixed.token, whole.token.reshape(3, 4, 6)[order].reshape(12, 6))
    # A longer budget continues the same draws.
    longer = draw(TABLE, prompts_of(*texts, width=3), keys, SETTINGS[2], samples=4, length=9)
    np.testing.assert_array_equal(longer.token[:, :6], whole.token)
    assert len(np.unique(whole.token, axis=0)) > 4  # or all of this would hold of a constant


@pytest.mark.full
def test_rows_sharded_over_a_mesh_draw_the_same():
    devices = jax.devices()
    mesh = jax.sharding.Mesh(np.array(devices), ("data",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    texts = [(v % 3,) * (1 + v % 2) for v in range(len(devices))]
    prompts, keys = prompts_of(*texts, width=2), keys_for(len(devices), 2)
    plain = draw(TABLE, prompts, keys, SETTINGS[3], samples=2, rescore="kept")
    prompts, keys = jax.device_put((prompts, keys), rows)
    spread = draw(TABLE, prompts, keys, SETTINGS[3], samples=2, rescore="kept")
    jax.tree.map(np.testing.assert_array_equal, plain, spread)


@pytest.mark.full
def test_a_vmapped_loop_has_one_predicate_and_the_same_draws():
    tables = jnp.stack([jnp.asarray(TABLE), jnp.asarray(TABLE[::-1].copy())])
    prompts, keys = prompts_of(PROMPT, (0,), width=2), keys_for(2, 3)
    arguments = drawing.arguments(samples=3, length=5, stop=(STOP,), pad=PAD, top_k=2)
    generate = functools.partial(sampling.generate, TOY, **arguments)

    def run(table):
        sample = generate(table, prompts, keys)
        return dataclasses.replace(sample, steps=None), sample.steps

    # out_axes None is refused where the numbers of steps differ from member to member.
    swept, steps = jax.jit(jax.vmap(run, out_axes=(0, None)))(tables)
    each = [draw(table, prompts, keys, OFF | {"top_k": 2}, samples=3, length=5) for table in tables]
    assert steps == max(sample.steps for sample in each)
    together = jax.tree.map(
        lambda *members: np.stack(members), *(dataclasses.replace(sample, steps=None) for sample in each)
    )
    jax.tree.map(np.testing.assert_array_equal, swept, together)


def test_row_keys_fold_in_step_prompt_and_sample():
    root, index, sample = jax.random.key(7), jnp.array([5, 5, 9]), jnp.array([0, 1, 0])
    keys = sampling.row_keys(root, jnp.int32(3), index, sample)
    for row in range(3):
        key = root
        for number in (3, int(index[row]), int(sample[row])):
            key = jax.random.fold_in(key, number)
        np.testing.assert_array_equal(jax.random.key_data(keys[row]), jax.random.key_data(key))
    by_row = sampling.row_keys(root, jnp.array([3, 4, 3]), index, sample)
    same = np.all(np.asarray(jax.random.key_data(by_row) == jax.random.key_data(keys)), axis=1)
    np.testing.assert_array_equal(same, [True, False, True])


def test_generate_refuses_wrong_counts():
    prompts = prompts_of(PROMPT, (0,), width=2)
    with pytest.raises(ValueError, match=r"shape \(3,\) but expected \(4\).*keys"):
        draw(TABLE, prompts, keys_for(1, 3), OFF, samples=2)
    with pytest.raises(ValueError, match="length = 0: expected at least 1"):
        draw(TABLE, prompts, keys_for(2, 1), OFF, length=0)
