"""Packed rows: where completions go, that none is lost, and that scores and updates do not notice."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rljax import models, types
from rljax.config import resolve
from rljax.models.scores import packing, scoring
from rljax.training import rows as rows_lib
from rljax.training.learning import updates
from tests.support import tiny

# --- where completions go ---------------------------------------------------------------------------------

P, G, W = 6, 5, 7


def first_fit_decreasing(length: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """Place the longest first (of equals, the first), each in the first row with room; for one prompt."""
    lane, offset, filled = np.zeros_like(length), np.zeros_like(length), [0] * len(length)
    for g in sorted(range(len(length)), key=lambda g: -length[g]):
        if length[g]:
            lane[g] = next(i for i, used in enumerate(filled) if used + length[g] <= width)
            offset[g] = filled[lane[g]]
            filled[lane[g]] += length[g]
    return lane, offset


def lengths() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    drawn = [rng.integers(0, W + 1, (P, G)) for _ in range(8)]
    short = [np.minimum(rng.geometric(0.5, (P, G)) - 1, W) for _ in range(4)]
    by_hand = np.array([[7] * 5, [0] * 5, [1] * 5, [7, 0, 1, 0, 6], [4, 3, 4, 3, 4], [3, 5, 2, 4, 0]])
    return [x.astype(np.int32) for x in (*drawn, *short, by_hand)]


@functools.cache
def _first_fit():
    return jax.jit(packing.first_fit, static_argnums=1)


def test_first_fit_is_first_fit_decreasing_and_nothing_overlaps():
    for length in lengths():
        lane, offset = (np.asarray(x) for x in _first_fit()(length, W))
        for p in range(P):
            expected = first_fit_decreasing(length[p], W)
            np.testing.assert_array_equal((lane[p], offset[p]), expected)
            taken = np.zeros((G, W), int)  # never more rows than completions
            for g in range(G):
                assert 0 <= offset[p, g] and offset[p, g] + length[p, g] <= W and 0 <= lane[p, g] < G
                taken[lane[p, g], offset[p, g] : offset[p, g] + length[p, g]] += 1
            assert taken.sum() == length[p].sum() and taken.max() <= 1
            # the bound of first-fit decreasing
            assert lane[p].max() + 1 <= 11 / 9 * -(-length[p].sum() // W) + 1 or length[p].sum() == 0
        assert np.all(lane[length == 0] == 0) and np.all(offset[length == 0] == 0)


def places_of(length: np.ndarray, width: int, lanes: int | None = None) -> packing.Places:
    """Return the places of completions of ``length`` [P, G] among as many packed rows as they take."""
    lane, offset = _first_fit()(jnp.asarray(length, jnp.int32), width)
    lanes = int(np.max(lane)) + 1 if lanes is None else lanes
    return packing.Places(lane.reshape(-1), offset.reshape(-1), lanes, length.shape[1], width)


@functools.cache
def _moved():
    def run(places, real, trees):
        put, take = packing.movers(places, real)
        there = jax.tree.map(put, trees)
        return there, {name: take(there[name]) for name in ("number", "id")}

    return jax.jit(run)


def test_movers_put_each_completion_in_its_place_and_take_it_back():
    rng = np.random.default_rng(1)
    trees = {
        "number": rng.normal(size=(P * G, W)).astype(np.float32),
        "id": rng.integers(1, 99, (P * G, W)).astype(np.int32),
        "bits": rng.integers(1, 2**32, (P * G, W, 2), dtype=np.uint32),
        "flag": np.ones((P * G, W), bool),
    }
    for length in lengths():
        real = np.arange(W) < length.reshape(-1, 1)
        # rows of which there are fewer than the longest prompt takes: what does not fit is nowhere
        places = places_of(length, W, lanes=3)
        there, back = _moved()(places, real, trees)
        lane, offset = np.asarray(places.lane), np.asarray(places.offset)
        for name, x in trees.items():
            expected = np.zeros((P * 3, W, *x.shape[2:]), x.dtype)
            for b, n in enumerate(length.reshape(-1)):
                if lane[b] < 3:
                    expected[b // G * 3 + lane[b], offset[b] : offset[b] + n] = x[b, :n]
            assert there[name].dtype == x.dtype
            np.testing.assert_array_equal(there[name], expected)
        inside = real & (lane < 3)[:, None]
        for name in back:
            np.testing.assert_array_equal(back[name], np.where(inside, trees[name], 0))
    assert not inside.all() and np.any(lane >= 3)


# --- scores -------------------------------------------------------------------------------------------------

SMALL = models.Architecture(vocabulary=37, layers=2, width=16, heads=4, kv_heads=2, hidden=24, tied=False)
PROMPTS, SAMPLES, LENGTH, WIDTH = 2, 4, 3, 6
# by rows of a prompt: real tokens; the mask has gaps where a tool spoke
ENDS = np.array([[6, 2, 3, 0], [1, 5, 4, 2]])
EXACT = frozenset({"reverse_kl"})
NEEDS = types.Needs(entropy=True, square_prob=True, log_normaliser=True, value=True, process=True)
NAMES = ("logp", "raw_logp", "entropy", "square_prob", "log_normaliser", "value", *EXACT)


def rollout() -> types.Rollout:
    rng = np.random.default_rng(2)
    rows = PROMPTS * SAMPLES
    mask = (np.arange(WIDTH) < ENDS.reshape(-1, 1)).astype(np.float32)
    mask[0, 2:4] = 0
    mask[5, 0] = 0  # a completion that begins with what is read and not scored
    token = rng.integers(0, SMALL.vocabulary, (rows, WIDTH))
    support = rng.random((rows, WIDTH, SMALL.vocabulary)) < 0.4
    context = np.repeat(rng.integers(0, SMALL.vocabulary, (PROMPTS, LENGTH)), SAMPLES, axis=0)
    seen = np.repeat(np.array([[0, 1, 1], [1, 1, 1]], np.float32), SAMPLES, axis=0)
    return types.Rollout(
        mask=mask,
        reward=np.zeros(rows, np.float32),
        group=np.arange(rows) // SAMPLES,
        context=types.Context(context.astype(np.int32), seen),
        action=types.Action(token.astype(np.int32), jax.jit(scoring.pack_bits)(support)),
    )


WEIGHT = np.random.default_rng(3).normal(size=(len(NAMES), PROMPTS * SAMPLES, WIDTH)).astype(np.float32)


@functools.cache
def parameters(output: str):
    """Entries large enough that distributions are far from even, and values from 0."""
    model = models.build(dataclasses.replace(SMALL, output=output))
    rng = np.random.default_rng(4)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return jax.tree.map(lambda x: rng.normal(0.1, 0.25, x.shape).astype(np.float32), shapes)


@functools.cache
def slope(model: models.Model, needs: types.Needs, packed: bool, options: tuple):
    """Compiled (weight of each name) -> gradient of the weighted sum of the scores in the parameters, scores."""

    def loss(params, rollout, places, reference, weight):
        scores = scoring.score(
            model,
            params,
            rollout,
            needs,
            temperature=0.8,
            kept=True,
            places=places,
            reference=reference,
            **dict(options),
        )
        named = {n: getattr(scores, n) for n in NAMES if n not in EXACT} | scores.divergence
        named = {n: x for n, x in named.items() if x is not None}
        return sum(jnp.sum(weight[n] * x) for n, x in named.items()), named

    params = parameters(model.architecture.output)
    places = places_of(ENDS, WIDTH) if packed else None
    reference = jax.tree.map(lambda x: 0.9 * x, params) if needs.divergence else None
    return functools.partial(jax.jit(jax.grad(loss, has_aux=True)), params, rollout(), places, reference)


def check(model: models.Model, needs: types.Needs = NEEDS, packed: bool = False, **options):
    """Compare with whole rows and whole logits: equal within 1e-5, a gradient's entries relative to its largest."""
    whole = models.build(dataclasses.replace(SMALL, output=model.architecture.output))
    plain = slope(whole, NEEDS | types.Needs(divergence=EXACT), False, (("vocabulary", 0),))
    counts = {n: needs.divergence or n not in EXACT for n in NAMES}
    weight = {n: WEIGHT[i] * float(bool(counts[n])) for i, n in enumerate(NAMES)}
    gradient, out = slope(model, needs, packed, (("samples", SAMPLES), *options.items()))(weight)
    expected_gradient, expected = plain(weight)
    assert set(out) == {n for n in expected if counts[n]} and out
    for name in out:
        assert np.any(expected[name] != 0)
        np.testing.assert_allclose(out[name], expected[name], rtol=1e-5, atol=1e-5, err_msg=name)
        np.testing.assert_array_equal(np.asarray(out[name])[np.arange(WIDTH) >= ENDS.reshape(-1, 1)], 0)
    for x, y in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected_gradient), strict=True):
        assert np.any(y != 0)
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * np.abs(y).max())


@pytest.mark.default_tier("True-True-none-blocked")
@pytest.mark.parametrize(
    ("packed", "scan", "remat", "attention"),
    [
        (False, True, "full", "plain"),
        (False, False, "none", "blocked"),
        (True, True, "none", "blocked"),
        (True, False, "full", "plain"),
    ],
)
def test_scores_and_gradient_do_not_depend_on_the_layout(packed, scan, remat, attention):
    model = models.build(dataclasses.replace(SMALL, scan=scan, remat=remat, attention=attention))
    check(model, packed=packed, vocabulary=10)


@pytest.mark.full
def test_exact_divergences_do_not_depend_on_the_layout():
    check(models.build(SMALL), NEEDS | types.Needs(divergence=EXACT), packed=True, chunk=20)


@pytest.mark.default_tier("packed")
@pytest.mark.parametrize("packed", [False, True], ids=["shared", "packed"])
def test_values_and_their_gradient_do_not_depend_on_the_layout(packed):
    changes = {"output": "scalar", "scan": packed, "remat": "full" if packed else "none"}
    check(models.build(dataclasses.replace(SMALL, **changes)), packed=packed)


def test_packing_takes_fewer_rows_and_the_shared_layout_reads_prompts_once():
    assert places_of(ENDS, WIDTH).lanes == 2 < SAMPLES

    def read(**options) -> set:
        """Shapes of what the attention norm of a layer reads."""
        model = models.build(dataclasses.replace(SMALL, scan=False))
        run = functools.partial(scoring.score, model, rollout=rollout(), needs=types.Needs(), **options)
        return {e.outvars[0].aval.shape for e in jax.make_jaxpr(run)(parameters("logits")).jaxpr.eqns}

    rows, stream = PROMPTS * SAMPLES, SMALL.width
    whole, shared = (rows, LENGTH + WIDTH, stream), (PROMPTS, LENGTH + SAMPLES * WIDTH, stream)
    packed = (PROMPTS, LENGTH + 2 * WIDTH, stream)
    assert whole in read() and not {shared, packed} & read()
    assert shared in read(samples=SAMPLES) and not {whole, packed} & read(samples=SAMPLES)
    options = {"samples": SAMPLES, "places": places_of(ENDS, WIDTH)}
    assert packed in read(**options) and not {whole, shared} & read(**options)


def test_a_completion_that_is_nowhere_has_no_score():
    places = places_of(ENDS, WIDTH, lanes=1)
    model = models.build(SMALL)
    run = functools.partial(scoring.score, model, needs=types.Needs(), temperature=0.8, samples=SAMPLES)
    logp = jax.jit(run)(parameters("logits"), rollout(), places=places).logp
    there = (np.arange(WIDTH) < ENDS.reshape(-1, 1)) & (np.asarray(places.lane) == 0)[:, None]
    assert 0 < there.sum() < ENDS.sum()
    whole = jax.jit(functools.partial(run.func, *run.args, needs=types.Needs(), temperature=0.8))
    raw = whole(parameters("logits"), rollout()).logp
    np.testing.assert_allclose(logp, np.where(there, raw, 0), rtol=1e-5, atol=1e-5)


# --- the update -----------------------------------------------------------------------------------------------

# sgd: adam would make of a rounding of a small gradient a whole step
FIELDS = {
    "phase__main__optimizer": "sgd(learning_rate=1.0)",
    "task": "arithmetic(operands=2, digits=2, working=True)",
    "seam__penalty": "entropy(0.01)",
    "model__remat": "none",
    "learner__clip_norm": 0.0,
    "log__rollout_rows": 29,  # rounded up to whole groups, which are all rows
}
REFERENCE = {"learner__share_prompt": False, "learner__vocabulary": 0, "model__attention": "plain"}


@functools.cache
def setup_and_state():
    """The setup of the plain path, and the state that every update starts from."""
    program = tiny.program("grpo()", **FIELDS, **REFERENCE)
    (step,) = program.steps
    return step.setup, jax.device_get(step.begin(None, program.key))


@functools.cache
def rows() -> types.Rollout:
    """Completions of very different lengths, sampled by nobody and rewarded at random."""
    setup, _ = setup_and_state()
    count, width = setup.rows, setup.task.completion_length
    position = np.arange(count, dtype=np.int32) // setup.samples
    prompts = jax.jit(lambda index: setup.task.prompts(index, "train"))(position)
    rng = np.random.default_rng(5)
    end = np.minimum(rng.geometric(2 / width, count) - 1, width)
    end[[3, 8, 9, 10, 11]] = 0, width, width, width, width  # nothing at all; a prompt whose rows are all full
    vocabulary = setup.networks["policy"].architecture.vocabulary
    mask = (np.arange(width) < end[:, None]).astype(np.float32)
    logp = (-np.log(vocabulary) + 0.2 * rng.normal(size=mask.shape)).astype(np.float32) * mask
    blank = rows_lib.blank(setup, position, position, jax.device_get(prompts.context))
    return blank.replace(
        mask=mask,
        reward=rng.integers(0, 2, count).astype(np.float32),
        valid=blank.valid.at[6].set(0.0),
        action=types.Action(rng.integers(0, vocabulary, mask.shape).astype(np.int32)),
        behaviour_logp=logp,
        raw_logp=logp,
        on_policy=np.ones(count, np.float32),
        version=np.zeros(mask.shape, np.int32),
    )


@functools.cache
def updated(**changes):
    """Return (change of the parameters, metrics) of one update with some settings of the learner changed."""
    setup, state = setup_and_state()
    run = jax.jit(functools.partial(updates.update, tiny.changed(setup, learner=changes)))
    after, metrics = jax.device_get(run(state, rows(), jax.random.key(0)))
    metrics["log_ratio"] = metrics.pop("rows").extra["log_ratio"]
    return jax.tree.map(lambda a, b: a - b, after.params, state.params), metrics


@pytest.mark.full
@pytest.mark.parametrize(("lanes", "microbatches"), [(1, 2), (2, 2), (4, 1)])
def test_an_update_of_packed_rows_is_the_update(lanes, microbatches):
    moved, metrics = updated(share_prompt=True, lanes=lanes, microbatches=microbatches, vocabulary=8)
    plain_moved, plain_metrics = updated()
    for x, y in zip(jax.tree.leaves(moved), jax.tree.leaves(plain_moved), strict=True):
        assert np.abs(y).max() > 1e-3
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-5 * np.abs(y).max() + 1e-7)
    assert set(metrics) == set(plain_metrics) >= {"loss/live_entropy", "sampler_gap", "gradient_norm"}
    for name, value in plain_metrics.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.full
def test_the_logged_ratio_of_each_token_is_the_one_of_the_loss():
    _, metrics = updated()
    mask, ratio = rows().mask * np.asarray(rows().valid)[:, None], metrics["log_ratio"]
    assert ratio.shape == mask.shape and ((ratio != 0) == (mask > 0)).all()
    # these rows have the same log-probs as the sampler's, so that its gap is the mean of |log ratio|
    np.testing.assert_allclose(np.abs(ratio).sum() / mask.sum(), metrics["sampler_gap"], rtol=1e-5)


@pytest.mark.full
def test_the_logged_ratio_is_that_of_the_last_epoch():
    setup, state = setup_and_state()
    still = optax.sgd(0.0)
    setup = tiny.changed(setup, learner={"epochs": 2, "minibatches": 2, "microbatches": 2})
    setup = dataclasses.replace(setup, phase=dataclasses.replace(setup.phase, optimizers=(still,)))
    state = state.replace(opt_state=(still.init(state.params["policy"]),))
    _, metrics = jax.jit(functools.partial(updates.update, setup))(state, rows(), jax.random.key(0))
    np.testing.assert_allclose(
        metrics["rows"].extra["log_ratio"], updated()[1]["log_ratio"], rtol=1e-5, atol=1e-6
    )  # the parameters stay, so that every epoch has the same


@pytest.mark.full
def test_the_rows_of_the_update_are_of_many_lengths():
    end = rows().mask.sum(axis=1).astype(np.int32)
    width = rows().mask.shape[1]
    assert width >= 8 and len(np.unique(end)) > 5 and end.min() == 0 and end.max() == width
    lanes = np.max([first_fit_decreasing(length, width)[0] for length in end.reshape(8, 4)], axis=1) + 1
    assert set(lanes) >= {1, 2, 4}  # prompts that take one unit of work, and prompts that take several


def test_the_config_reaches_the_step():
    setup = tiny.program("grpo()", learner__lanes=2, learner__vocabulary=7, sampler__compact=3).steps[0].setup
    assert (
        setup.learner.lanes,
        setup.learner.vocabulary,
        setup.settings.sampler.compact,
        setup.learner.share_prompt,
    ) == (2, 7, 3, True)
    plain = setup_and_state()[0].learner
    assert not plain.share_prompt and plain.vocabulary == 0


# --- the config -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "fields", "message"),
    [
        ("grpo()", {"learner__lanes": -1}, r"config\.learner\.lanes=-1: must be a whole number in \[0"),
        ("grpo()", {"learner__lanes": 5}, r"config\.learner\.lanes=5 \(phase 'main'\).*at most batch\.samples=4"),
        ("grpo()", {"learner__lanes": 2, "learner__share_prompt": False}, r"learner\.lanes=2.*needs learner\.share_p"),
        ("grpo()", {"learner__lanes": 2, "model__attention": "splash"}, r"learner\.lanes=2.*splash"),
        ("dpo()", {"learner__lanes": 2}, r"config\.learner\.lanes=2.*dpo.*needs each group in one"),
    ],
)
def test_lanes_that_do_not_fit_are_refused(algorithm, fields, message):
    with pytest.raises(ValueError, match=message):
        resolve.phases(tiny.config(algorithm, **fields))


def test_demonstrations_take_no_notice_of_lanes():
    config = tiny.config("sft()", phases=("main",), learner__lanes=4, learner__share_prompt=False)
    assert resolve.phases(config)[0].algorithm.source.origin == "demonstrations"
