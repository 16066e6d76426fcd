"""Training in little memory: bfloat16 parameters, optimizers that hold less, state that waits on the host."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

from rljax import models, types
from rljax.config import resolve
from rljax.host import memory
from rljax.models.network import layer
from rljax.models.scores import scoring
from rljax.run.records import checkpoints
from rljax.training import sharding
from rljax.training.learning import optimizers
from tests.models import test_adapters
from tests.support import tiny
from tests.support.reference import exact

MODEL = models.build(models.Architecture(vocabulary=16, layers=2, width=16, heads=2, kv_heads=2, hidden=24))


# --- rounding ----------------------------------------------------------------------------------------


def test_the_expectation_of_a_rounded_number_is_the_number():
    draws = 1 << 14
    x = jnp.asarray([1.001, -1.001, 3.14159, -1e-5, 6.1e30, 0.3, 1 + 2**-8], jnp.float32)
    rounded = jax.jit(optimizers.rounded)(jnp.broadcast_to(x, (draws, len(x))), jax.random.key(0))
    rounded = np.asarray(rounded, np.float64)
    x = np.asarray(x, np.float64)
    for i, (value, column) in enumerate(zip(x, rounded.T, strict=True)):
        low, high = np.unique(column)  # two neighbours, on either side
        assert low < value < high and float(jnp.nextafter(jnp.bfloat16(low), jnp.bfloat16(np.inf))) == high, i
        up = (value - low) / (high - low)
        bound = 5 * np.sqrt(up * (1 - up) / draws) * (high - low)  # five standard errors of a binomial
        assert abs(column.mean() - value) < bound, i


def test_numbers_that_bfloat16_holds_are_left():
    held = jnp.asarray([0.0, -0.0, 1.0, -3.5, 2.0**-120, jnp.inf, -jnp.inf], jnp.float32)
    for seed in range(4):
        np.testing.assert_array_equal(optimizers.rounded(held, jax.random.key(seed)).astype(jnp.float32), held)
    nan = jax.lax.bitcast_convert_type(jnp.full(64, 0x7FFFFFFF, jnp.uint32), jnp.float32)
    assert jnp.isnan(optimizers.rounded(nan, jax.random.key(0))).all()


@functools.partial(jax.jit, static_argnums=(0, 1))
def descend(stochastic, steps):
    """Descend from 1 along a constant slope, in steps of 2^-12: a sixteenth of half the distance to the neighbour."""
    tx = optimizers.build([optax.sgd(2.0**-12)], clip_norm=0, warmup=0)
    params = {"w": jnp.ones(512, jnp.bfloat16), "wide": jnp.ones(2)}

    def step(carry, i):
        key = jax.random.fold_in(jax.random.key(0), i) if stochastic else None
        gradient = jax.tree.map(jnp.ones_like, carry[0])
        return optimizers.apply(tx, gradient, jnp.zeros(()), *carry, key)[:2], None

    (params, _), _ = jax.lax.scan(step, (params, tx.init(params)), jnp.arange(steps))
    return params


def test_small_updates_are_lost_to_nearest_rounding_and_counted_by_stochastic():
    steps = 256  # down to 1 - 2^-4, where neighbours are 2^-8 apart
    nearest, stochastic = descend(False, steps), descend(True, steps)
    np.testing.assert_array_equal(nearest["w"], 1.0)
    # of a mean over 512 walks of 256 steps, each of variance under 2^-12 2^-8: five standard errors
    error = 5 * np.sqrt(steps * 2.0**-20 / 512)
    assert abs(float(stochastic["w"].astype(jnp.float32).mean()) - (1 - 2**-4)) < error < 2**-4 / 10
    assert stochastic["w"].dtype == jnp.bfloat16
    for params in (nearest, stochastic):  # float32 rounds nothing
        np.testing.assert_array_equal(params["wide"], 1 - 2**-4)


def test_moments_are_float32_unless_the_optimizer_says_otherwise():
    params = {"w": jnp.ones((4, 4), jnp.bfloat16)}
    for call, mu in (("adamw(0.1)", "float32"), ("adamw(0.1, mu_dtype='bfloat16')", "bfloat16")):
        state = optimizers.build(optimizers.parts(call, "test"), clip_norm=1.0, warmup=2).init(params)
        assert (str(optax.tree.get(state, "mu")["w"].dtype), str(optax.tree.get(state, "nu")["w"].dtype)) == (
            mu,
            "float32",
        )


def test_an_optimizer_may_read_the_loss_and_no_more():
    params, gradient = {"w": jnp.ones((4, 4))}, {"w": jnp.full((4, 4), 0.1)}
    tx = optimizers.build(optimizers.parts("polyak_sgd(1.0)", "test"), clip_norm=0.0, warmup=0)
    new, *_ = optimizers.apply(tx, gradient, jnp.float32(0.08), params, tx.init(params))
    np.testing.assert_allclose(new["w"], 1 - 0.1 * 0.08 / 0.16, rtol=1e-6)  # the loss over the squared norm
    tx = optimizers.build(optimizers.parts("sgd(1.0) | reduce_on_plateau(0.5, 2)", "test"), clip_norm=0.0, warmup=0)
    state, moved = tx.init(params), []
    for _ in range(4):  # the loss stays: the first is the best, and after two others the rate is halved
        new, state, *_ = optimizers.apply(tx, gradient, jnp.float32(1.0), params, state)
        moved.append(round(float(1 - new["w"][0, 0]), 4))
    assert moved[0] == 0.1 and moved[-1] == 0.05
    with pytest.raises(ValueError, match="lbfgs"):
        optimizers.parts("lbfgs()", "test")
    with pytest.raises(ValueError, match="unknown name 'noisy_sgd'"):  # no checkpoint could store its key
        optimizers.parts("noisy_sgd(0.01)", "test")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"learner__rounding": "up"}, "learner.rounding='up': must be one of 'nearest', 'stochastic'"),
        ({"learner__rounding": "stochastic"}, "this run trains float32 parameters"),
        (
            {"learner__rounding": "stochastic", "model__param_dtype": "bfloat16", "model__adapter_rank": 2},
            "this run trains adapters, which are float32",
        ),
        (
            {"model__param_dtype": "float16"},
            "param_dtype='float16': must be one of 'float32', 'bfloat16'. Did you mean 'bfloat16'",
        ),
        ({"model__adapter_modules": ("querry",)}, "adapter_modules=.*: choose some of query, key"),
    ],
)
def test_what_rounds_nothing_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        resolve.phases(tiny.config(**fields))


# --- optimizers that hold less ------------------------------------------------------------------------


def one_update(call, params, gradient):
    """Return what a config's optimizer adds in its first step, and its state, on a mesh of eight devices."""
    mesh = sharding.make_mesh({"fsdp": 8})
    tx = optimizers.build(optimizers.parts(call, "test"), clip_norm=0.0, warmup=0)
    laid = sharding.param_sharding(mesh, MODEL.axes, params)
    layout = optimizers.shardings(tx, jax.eval_shape(lambda: params), laid, sharding.replicated(mesh))
    state = jax.jit(tx.init, out_shardings=layout)(jax.device_put(params, laid))
    step = jax.jit(
        lambda g, p, s: optimizers.apply(tx, g, jnp.zeros(()), p, s), out_shardings=(laid, layout, None, None)
    )
    new, state, _, finite = step(gradient, jax.device_put(params, laid), state)
    assert finite and all(np.isfinite(x).all() for x in jax.tree.leaves(new))
    return jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), new, params), state


@functools.cache
def start():
    params = MODEL.init(jax.random.key(0))
    rng = np.random.default_rng(0)
    return params, jax.tree.map(lambda x: jnp.asarray(rng.normal(0, 1, x.shape), jnp.float32), params)


@pytest.mark.full
def test_muon_moves_each_layers_matrices_as_matrices_and_the_rest_by_adam():
    params, gradient = start()
    moved, state = one_update("muon(constant_schedule(0.01), adam_learning_rate=0.002)", params, gradient)
    peer = optax.contrib.muon(0.01)  # by itself it takes what has two dimensions
    for name, rows in (("query", 16), ("attention_output", 16), ("down", 24)):
        matrices = {str(i): gradient["layers"][name][i].reshape(rows, -1) for i in range(2)}
        zero = jax.tree.map(jnp.zeros_like, matrices)
        expected, _ = peer.update(matrices, peer.init(zero), zero)
        for i in range(2):
            matrix = moved["layers"][name][i].reshape(rows, -1)
            np.testing.assert_allclose(matrix, expected[str(i)], atol=2e-5)
            sizes = np.linalg.svd(matrix, compute_uv=False) / 0.01
            assert 0.5 < sizes.min() and sizes.max() < 1.5  # near orthogonal; five iterations reach 0.7 to 1.2 of it
    first = 0.002 * (1 + 0.9 * 0.1 / (1 - 0.9**2))  # Adam's first step with Nesterov's momentum
    np.testing.assert_allclose(np.abs(moved["embedding"]), first, rtol=1e-3)
    np.testing.assert_allclose(np.abs(moved["final_norm"]), first, rtol=1e-3)
    split = [x for x in jax.tree.leaves(state) if not x.sharding.is_fully_replicated]
    assert len(split) == 7 + 2  # one moment of each matrix, two of the embedding; norms are whole everywhere


@pytest.mark.full
def test_adafactor_holds_sums_over_rows_and_columns():
    params, gradient = start()
    moved, state = one_update("adafactor(0.01, min_dim_size_to_factor=8)", params, gradient)
    assert all(np.abs(x).max() > 0 for x in jax.tree.leaves(moved))
    held, whole = (sum(x.size for x in jax.tree.leaves(tree)) for tree in (state, params))
    assert held < whole / 3  # Adam's would be twice the parameters
    rows, columns = (x["layers"]["up"] for x in (optax.tree.get(state, "v_row"), optax.tree.get(state, "v_col")))
    assert {rows.shape, columns.shape} == {(2, 16), (2, 24)}
    width, hidden = (rows, columns) if rows.shape == (2, 16) else (columns, rows)
    assert hidden.sharding.is_fully_replicated and width.sharding.shard_shape(width.shape) == (2, 2)
    # the estimate of g^2 that they stand for, row_i column_j / mean(row) (arXiv 1804.04235), is exact for rank one
    squares = np.mean(np.square(gradient["layers"]["up"]), axis=2)
    np.testing.assert_allclose(np.asarray(width) / np.asarray(width).mean(), squares / squares.mean(), rtol=1e-4)


# --- gradients of bfloat16 parameters ---------------------------------------------------------------

NARROW = models.Architecture(
    vocabulary=101,
    layers=1,
    width=32,
    heads=4,
    kv_heads=2,
    hidden=48,
    param_dtype="bfloat16",
    bias=("query", "key", "value"),
    head_norm=True,
)
ROWS, LENGTH, WIDTH, COMMON = 32, 16, 256, 7


def test_an_embedding_read_often_gets_the_whole_gradient():
    token = jnp.full((8, 500), 3, jnp.int32)
    read = lambda table: jnp.sum(layer.embed(NARROW, {"embedding": table}, token))  # noqa: E731
    gradient = jax.grad(read)(jnp.zeros((5, 2), jnp.bfloat16))
    assert gradient.dtype == jnp.bfloat16
    np.testing.assert_array_equal(gradient[:, 0], [0, 0, 0, 4000, 0])  # a sum of ones in bfloat16 ends at 256


@pytest.mark.full
@pytest.mark.parametrize(
    ("changes", "divergence", "bound"),
    # A gradient is rounded once, by 2^-9 of itself at most; a tied one is rounded in three sums. With bfloat16
    # activations, each of some ten operands of a product has an error of 2^-9.
    [
        ({}, frozenset(), 2**-8),
        ({"tied": False, "adapter_rank": 4}, frozenset({"reverse_kl"}), 2**-9),
        ({"experts": 4, "experts_per_token": 2, "expert_hidden": 24, "dtype": "bfloat16"}, frozenset(), 2**-6),
    ],
    ids=["tied", "untied-adapters-whole-logits", "experts-bfloat16"],
)
def test_every_gradient_is_that_of_float64(changes, divergence, bound):
    model = models.build(dataclasses.replace(NARROW, **changes))
    rng = np.random.default_rng(0)
    token = np.where(rng.random((ROWS, WIDTH)) < 0.5, COMMON, rng.integers(0, NARROW.vocabulary, (ROWS, WIDTH)))
    assert np.sum(token == COMMON) > 4000
    weight = rng.normal(0.3, 1, (ROWS, WIDTH - LENGTH)).astype(np.float32)

    def fill(path, x):
        norm = "norm" in path[-1].key
        return jnp.asarray(rng.normal(float(norm), 0.2, x.shape), x.dtype)

    params = jax.tree_util.tree_map_with_path(fill, jax.eval_shape(model.init, jax.random.key(0)))
    prompt, action = (jnp.asarray(x, jnp.int32) for x in np.split(token, [LENGTH], axis=1))
    rollout = types.Rollout(
        mask=jnp.ones(action.shape),
        reward=jnp.zeros(ROWS),
        group=jnp.arange(ROWS),
        context=types.Context(prompt, jnp.ones(prompt.shape)),
        action=types.Action(action),
    )

    def loss(params):  # 15 groups of positions, 2 parts of the vocabulary
        needs = types.Needs(divergence=divergence)
        return jnp.sum(
            weight * scoring.score(model, params, rollout, needs, chunk=512, vocabulary=64, reference=params).logp
        )

    gradient = jax.jit(jax.grad(loss))(params)
    expected = exact.gradient(model.architecture, params, token, np.pad(weight, ((0, 0), (LENGTH - 1, 0))))
    actual = jax.tree.leaves(jax.tree.map(lambda x: np.asarray(x, np.float64), gradient))
    for (path, right), left in zip(jax.tree_util.tree_leaves_with_path(expected), actual, strict=True):
        error = np.linalg.norm(left - right) / np.linalg.norm(right)
        assert error < bound, (jax.tree_util.keystr(path), error)
        if path[-1].key == "embedding":
            assert np.linalg.norm((left - right)[COMMON]) < bound * np.linalg.norm(right[COMMON])


# --- the step ---------------------------------------------------------------------------------------


@functools.cache
def trained(offload):
    """Return program and state after two updates of bfloat16 parameters on eight devices, and the state before."""
    program = tiny.program(
        "reinforce()",
        learner__rounding="stochastic",
        learner__offload=offload,
        learner__share_prompt=False,
        learner__minibatches=2,
        model__param_dtype="bfloat16",
        phase__main__optimizer="muon(0.001)",
        mesh__fsdp=8,
    )
    (step,) = program.steps
    state = step.begin(None, program.key)
    before, rows = jax.device_get(state), test_adapters.rollout(step, state, program.key)
    for _ in range(2):
        state, metrics = jax.block_until_ready(step.update(state, rows, program.key))
    assert metrics["skipped"] == 0
    return step, before, state


@pytest.mark.full
def test_bfloat16_parameters_train_with_float32_moments():
    _, before, state = trained(False)
    assert {str(x.dtype) for x in jax.tree.leaves(state.params)} == {"bfloat16"}
    assert {str(x.dtype) for x in jax.tree.leaves(state.opt_state) if x.ndim} == {"float32"}
    jax.tree.map(lambda x, y: np.any(x != np.asarray(y)) or pytest.fail(), before.params, state.params)


@pytest.mark.full
def test_offloaded_state_waits_in_the_hosts_memory_and_changes_nothing(tmp_path):
    kinds = {memory.kind for memory in jax.devices()[0].addressable_memories()}
    if optimizers.HOST not in kinds:
        pytest.skip(f"this backend has {kinds}")
    step, _, state = trained(True)
    assert {x.sharding.memory_kind for x in jax.tree.leaves(state.opt_state)} == {optimizers.HOST}
    assert optimizers.HOST not in {x.sharding.memory_kind for x in jax.tree.leaves(state.params)}
    _, _, plain = trained(False)
    test_adapters.equal((state.params, state.opt_state), (plain.params, plain.opt_state))
    with checkpoints.Checkpointer(tmp_path / "run") as saver:
        saver.save(2, state, {})
    restored, _, _ = checkpoints.Checkpointer(tmp_path / "run").restore(step.shape)
    test_adapters.equal(restored, state)
    assert {x.sharding.memory_kind for x in jax.tree.leaves(restored.opt_state)} == {optimizers.HOST}


def test_a_memory_that_is_not_there_is_named():
    with pytest.raises(ValueError, match=r"config.learner.offload: needs a memory of kind 'attic'; cpu device 0 has "):
        memory.check(jax.local_devices(), "attic", "learner.offload")
