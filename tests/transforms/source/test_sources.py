"""The contract of sources: what a source draws, passes again or writes ahead changes nothing that it should not."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import types
from rljax.config import resolve
from rljax.training import checks, sources, steps
from rljax.training.producers import completions
from rljax.transforms import define, source
from rljax.transforms.source import chain, groups
from tests.methods import published
from tests.support import tiny

PROMPTS, SAMPLES = 8, 4  # of tiny.config
FLOATS = ("behaviour_logp", "raw_logp", "entropy", "square_prob")


@define.source
def first_only():
    """Draw the first prompt that is offered in every place."""
    return types.Source(choose=lambda pool, problems, offered, key: types.Choice(jnp.full_like(offered, offered[0])))


@define.source
def given(samples: tuple[int, ...] = ()):
    """Draw the prompts offered, with these numbers of samples."""
    return types.Source(
        uneven=True,
        choose=lambda pool, problems, offered, key: types.Choice(offered, jnp.asarray(samples, jnp.int32)),
    )


@define.source
def headed(length: int = 0):
    """Begin every completion with the head of a demonstration."""
    return types.Source(
        solutions=True,
        head=lambda pool, problems, rows, solutions, key: solutions.replace(
            length=jnp.full_like(solutions.length, length)
        ),
    )


def same_prompts(pool, problems, rollout, solutions, count, key):
    row = jnp.arange(count, dtype=jnp.int32) * (rollout.group.size // count)
    return types.Edit(row, jnp.ones((count,), bool), rollout.context.token[row], rollout.context.mask[row])


@define.source
def passed(kept: str = "first", by: str = "prompt", plain: bool = False):
    """Pass every prompt or row again, unedited, and keep the rows of one pass."""

    def merge(first, second, edit):
        return first if kept == "first" else groups.put(jnp.ones(first.group.shape, bool), second, first)

    again = types.Again(edit=same_prompts, merge=merge, by=by, samples=1 if by == "row" else 0, plain=plain)
    return types.Source(again=again, off_policy=plain)


@define.source
def another_result(result: str = "index"):
    """Return what is no choice, and no pair."""
    return types.Source(
        choose=lambda pool, problems, offered, key: offered if result == "index" else None,
        select=lambda rollout, pool, count, key: rollout,
    )


@define.source
def of_other_arguments():
    """Forget two arguments."""
    return types.Source(choose=lambda pool, offered: types.Choice(offered))


@define.source
def no_source():
    """Forget to return it."""


def test_a_function_of_a_source_with_other_arguments_or_another_result_is_named():
    with pytest.raises(ValueError, match=r'choose \(File ".*test_sources.py", line \d+\) takes \(pool, offered\): exp'):
        of_other_arguments()
    with pytest.raises(ValueError, match=r"no_source \(File .*\) returned a value of type NoneType: expected types.So"):
        no_source()
    offered = jnp.arange(3, dtype=jnp.int32)
    for result, kind in (("index", r"int32\[3\]"), ("nothing", "NoneType")):
        with pytest.raises(ValueError, match=rf"choose \(.*\) returned a value of type {kind}: expected types.Choice"):
            another_result(result).choose((), None, offered, None)
    with pytest.raises(ValueError, match=r"select \(.*\) returned .* type tuple: expected a pair \(types.Rollout, poo"):
        another_result().select((), (), 3, None)
    setup = tiny.program("grpo(kl=0.0)").setups[0]
    algorithm = dataclasses.replace(setup.algorithm, source=another_result())
    with pytest.raises(ValueError, match=r"source another_result\(result='index'\): choose \(.*\) returned a value"):
        checks.check(tiny.changed(setup, algorithm=algorithm))


@functools.cache
def step_of(*pieces):
    """Return the step of plain GRPO with this source, and its first state."""
    program = tiny.program("grpo(kl=0.0)")
    setup = program.steps[-1].setup
    algorithm = dataclasses.replace(setup.algorithm, source=chain.chain(pieces))
    step = steps.make_step(tiny.changed(setup, algorithm=algorithm))
    return step, step.begin(None, program.key), program.key


@functools.cache
def rows_of(*pieces):
    step, state, key = step_of(*pieces)
    return jax.device_get(step.rollout(state, key))


def same(one, two, *, but=()):
    one, two = (x.replace(extra={}, **dict.fromkeys(but)) for x in (one, two))
    assert jax.tree.structure(one) == jax.tree.structure(two)
    jax.tree.map(np.testing.assert_array_equal, one, two)


PLAIN = source.task()


@pytest.mark.full
def test_a_prompt_drawn_again_gets_other_samples_and_the_first_keeps_its_own():
    plain, drawn = rows_of(PLAIN), rows_of(first_only())
    token = drawn.action.token.reshape(PROMPTS, SAMPLES, -1)
    assert set(drawn.index) == {plain.index[0]} and len(set(drawn.group)) == PROMPTS
    np.testing.assert_array_equal(token[0], plain.action.token[:SAMPLES])
    assert len({t.tobytes() for t in token}) == PROMPTS


@pytest.mark.full
def test_a_second_pass_of_the_same_prompt_gets_other_samples():
    first, second = rows_of(passed()), rows_of(passed("second"))
    same(first, rows_of(PLAIN))
    assert np.all(second.extra["pass"] == 1) and np.all(first.extra["pass"] == 0)
    np.testing.assert_array_equal(first.index, second.index)
    np.testing.assert_array_equal(first.context.token, second.context.token)
    assert np.any(first.action.token != second.action.token, axis=1).mean() > 0.5
    by_row = rows_of(passed("second", by="row"))
    token = by_row.action.token.reshape(PROMPTS, SAMPLES, -1)
    assert all(len({row.tobytes() for row in group}) > 1 for group in token)


@pytest.mark.full
def test_equal_numbers_of_samples_given_one_by_one_are_the_plain_rollout():
    equal, plain = rows_of(given(samples=(SAMPLES,) * PROMPTS)), rows_of(PLAIN)
    same(equal, plain, but=FLOATS)
    for field in FLOATS:  # two programs agree to rounding
        np.testing.assert_allclose(getattr(equal, field), getattr(plain, field), rtol=1e-5, atol=1e-6)


def test_prompts_may_have_unequal_numbers_of_samples():
    counts, plain = (9, 0, 1, 4, 4, 4, 2, 8), rows_of(PLAIN)
    rows = rows_of(given(samples=counts))
    assert [int(np.sum(rows.group == g)) for g in range(PROMPTS)] == list(counts)
    for g, count in enumerate(counts):
        few = min(count, SAMPLES)
        mine, others = np.flatnonzero(rows.group == g)[:few], np.flatnonzero(plain.group == g)[:few]
        np.testing.assert_array_equal(rows.action.token[mine], plain.action.token[others])
        np.testing.assert_array_equal(rows.reward[mine], plain.reward[others])


@pytest.mark.full
def test_a_head_of_no_tokens_is_the_plain_rollout_and_one_of_some_is_read_and_not_trained():
    plain, none, two = rows_of(PLAIN), rows_of(headed()), rows_of(headed(length=2))
    same(none, plain, but=FLOATS)  # another program, which prefills each row
    for name in FLOATS:
        np.testing.assert_allclose(getattr(none, name), getattr(plain, name), atol=1e-5)
    head = two.extra["head"]
    np.testing.assert_array_equal(head.sum(axis=1), 2)
    assert not np.any(two.mask * head) and not np.any(two.behaviour_logp * head)
    step, _, key = step_of(headed(length=2))
    shown = completions.solutions(step.setup, jnp.int32(0), jnp.asarray(two.index), key)
    np.testing.assert_array_equal(two.action.token[:, :2], shown.token[:, :2])
    used = np.arange(two.mask.shape[1])[None, :] < two.action.length[:, None]
    np.testing.assert_array_equal(two.mask + head, used)
    verdict = step.setup.verify(two.index, "train", two.action.token, used)
    np.testing.assert_array_equal(two.reward, verdict.reward)


@pytest.mark.full
@pytest.mark.parametrize(
    "pieces",
    [
        (passed(),),
        (given(samples=(SAMPLES,) * PROMPTS),),
        pytest.param((passed(plain=True),), marks=pytest.mark.full),
    ],
    ids=["passed", "given", "trained under the plain prompt"],
)
def test_a_step_that_keeps_the_plain_rows_is_the_plain_step(pieces):
    after, want = (step.fused(step.begin(None, key), key) for step, _, key in (step_of(*pieces), step_of(PLAIN)))
    near = dict(rtol=1e-4, atol=1e-5) if pieces[0].uneven else dict(rtol=0)  # two programs agree to rounding
    jax.tree.map(functools.partial(np.testing.assert_allclose, **near), after[0].params, want[0].params)
    values, expected = ({k: v for k, v in x[1].items() if k in want[1] and k != "rows"} for x in (after, want))
    jax.tree.map(functools.partial(np.testing.assert_allclose, **near), values, expected)


@pytest.mark.full
def test_a_chain_runs_its_pieces_in_order_and_one_piece_is_itself():
    dynamic = source.dynamic(2)
    assert chain.chain((dynamic,)) is dynamic
    both = chain.chain((source.replay(0.5), dynamic))
    assert both.oversample == 2 and both.off_policy
    assert both.spec == "replay(share=0.5, steps=1) | dynamic(oversample=2)"
    step, _, key = step_of(source.replay(0.5), dynamic)
    state = step.begin(None, key)
    assert set(state.pool) == {"replay", "dynamic"} and state.pool["replay"]["rows"].reward.shape == (64,)
    state, metrics = step.fused(state, key)
    assert state.pool["replay"]["filled"] and np.isfinite(metrics["loss"])


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ((source.dynamic(2), source.dynamic(3)), "dynamic is there twice"),
        ((first_only(), given(samples=(1,))), "both choose the prompts"),
        ((passed(), source.task(), source.guided(1)), None),
        ((passed(), source.partial(4)), "leaves no completion that passed"),
        ((given(samples=(1,)), source.dynamic(2)), "unequal samples"),
        ((source.demonstrations(), source.task()), None),
        ((source.dynamic(2), source.adcl()), r"dynamic\(.* would select .* Write adcl\(.* before it"),
        ((source.partial(4), source.adcl()), r"partial\(.* carries rows over, and adcl\("),
        ((source.guided(1), source.adcl(), source.dynamic(2)), None),
    ],
)
def test_pieces_that_exclude_each_other_are_refused_by_name(pieces, message):
    if message is None:
        assert chain.chain(pieces).spec == " | ".join(p.spec for p in pieces)
    else:
        with pytest.raises(ValueError, match=message):
            chain.chain(pieces)


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name, fields in published.METHODS.items() if "config" not in fields])
def test_the_pieces_of_a_published_method_fit_its_step(name):
    """Its config is resolved and its pieces run on abstract arrays; ``tests.methods.published`` takes real steps."""
    if any(field.startswith("module.") for field in published.METHODS[name]):
        published.program(name)  # whose modules read texts; the pieces are checked when it is built
        return
    (phase,) = resolve.phases(published.config(name))
    (setup,) = tiny.program("grpo(kl=0.0)", task=published.config(name).task).setups
    checks.check(tiny.changed(setup, algorithm=phase.algorithm))


# --- how often a source acts ---------------------------------------------------------------------


def fired(*pieces):
    step, _, key = step_of(*pieces)
    rows = rows_of(*pieces)
    return sources.fired(step.setup, rows, rows, key)


@pytest.mark.full
def test_a_source_says_on_which_share_of_a_step_it_acted():
    assert fired(PLAIN) is None
    assert fired(first_only()) == 1 - 1 / PROMPTS  # the first place has the prompt of the shuffle
    assert fired(given(samples=(9, 0, 1, 4, 4, 4, 2, 8))) == (9 + 1 + 2 + 8) / (PROMPTS * SAMPLES)
    assert fired(given(samples=(SAMPLES,) * PROMPTS)) == 0


@pytest.mark.full
def test_a_second_pass_and_a_head_act_on_the_rows_that_have_one():
    assert fired(headed(length=2)) == 1 and fired(headed()) == 0
    assert fired(passed("second")) == 1


@pytest.mark.full
def test_a_memory_that_no_prompt_reaches_again_is_named():
    (note,) = tiny.program(seam__source="arpo()", phase__main__steps=3, task="guess").steps[0].notes
    assert "the source arpo" in note and "3 steps draw 24 prompts of 1,0" in note
    assert tiny.program(seam__source="arpo()", phase__main__steps=25).steps[0].notes == ()  # 80 problems
