"""Adapters: the same model while they are 0, the same as one merged matrix after, and all that is trained."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import models
from rljax.models import adapters
from rljax.models.checkpoints import weights
from rljax.run.records import checkpoints
from rljax.training import sharding
from tests.support import tiny

PLAIN = models.Architecture(
    vocabulary=32,
    layers=2,
    width=16,
    heads=4,
    kv_heads=2,
    hidden=24,
    head_size=6,
    tied=False,
    bias=("query", "key", "value"),
)
ADAPTED = dataclasses.replace(PLAIN, adapter_rank=3, adapter_scale=0.5)
MODEL = models.build(ADAPTED)
TOKEN = jnp.asarray(np.random.default_rng(0).integers(0, 32, (4, 9)), jnp.int32)
MASK = jnp.ones((4, 9))


def stirred(params):
    """Give the adapters' second matrices values: at the start they are 0."""

    def one(path, x):
        if not adapters.is_adapter(path):
            return x
        return jnp.asarray(np.random.default_rng(x.size).normal(0, 0.3, x.shape), x.dtype)

    return jax.tree_util.tree_map_with_path(one, params)


@functools.cache
def moved():
    return stirred(MODEL.init(jax.random.key(0)))


@functools.partial(jax.jit, static_argnums=0)
def logits(model, params):
    return model.logits(params, model.apply(params, TOKEN, MASK))


def equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(a), jax.device_get(b))


def test_at_the_start_the_model_is_the_one_without_adapters():
    params, plain = MODEL.init(jax.random.key(0)), models.build(PLAIN).init(jax.random.key(0))
    matrices, base = adapters.merged(ADAPTED, params)
    assert matrices == PLAIN
    equal(base, plain)  # their draws took nothing from the others'
    np.testing.assert_array_equal(logits(MODEL, params), logits(models.build(PLAIN), plain))
    into, out = (params["layers"][f"down{end}"] for end in (adapters.IN, adapters.OUT))
    assert into.shape == (2, 24, 3) and out.shape == (2, 3, 16) and not out.any()
    assert params["layers"][f"attention_output{adapters.IN}"].shape == (2, 4, 6, 3)
    np.testing.assert_allclose(into.std(), 24**-0.5, rtol=0.2)  # of 144 draws: 3 standard errors


def test_one_merged_matrix_computes_the_same():
    plain, params = adapters.merged(ADAPTED, moved())
    out = logits(MODEL, moved())
    np.testing.assert_allclose(out, logits(models.build(plain), params), atol=1e-5)
    assert np.abs(out - logits(MODEL, MODEL.init(jax.random.key(0)))).max() > 0.1
    layers = moved()["layers"]  # by hand, one layer of the matrix that contracts two dimensions
    a, b = (np.asarray(layers[f"attention_output{end}"][1], np.float64) for end in (adapters.IN, adapters.OUT))
    by_hand = layers["attention_output"][1] + 0.5 * np.tensordot(a, b, 1)
    np.testing.assert_allclose(params["layers"]["attention_output"][1], by_hand, atol=1e-6)


def test_only_the_modules_named_have_them():
    some = dataclasses.replace(ADAPTED, adapter_modules=("query", "down"))
    params = models.build(some).init(jax.random.key(0))
    names = {name for name in params["layers"] if name.endswith((adapters.IN, adapters.OUT))}
    assert names == {f"{name}{end}" for name in ("query", "down") for end in (adapters.IN, adapters.OUT)}
    assert logits(models.build(some), params).shape == (4, 9, 32)


def test_decoding_reads_them():
    @jax.jit
    def decoded(params):
        weights = MODEL.decode_params(params)
        hidden, cache = MODEL.prefill(weights, TOKEN[:, :5], MASK[:, :5], 1, 4)
        out = [hidden]
        for i in range(5, 9):
            step, cache = MODEL.extend(weights, TOKEN[:, i], MASK[:, i], cache)
            out.append(step[:, None])
        return MODEL.logits(weights, jnp.concatenate(out, axis=1))

    np.testing.assert_allclose(decoded(moved()), logits(MODEL, moved()), atol=1e-5)


def test_they_are_float32_beside_bfloat16():
    params = models.build(dataclasses.replace(ADAPTED, param_dtype="bfloat16", output="scalar")).init(jax.random.key(0))
    part = adapters.trained(params)
    assert {str(x.dtype) for x in jax.tree.leaves(part)} == {"float32"}
    assert len(jax.tree.leaves(part)) == 2 * 7 + 1  # seven matrices, and the head
    assert {str(params["layers"][name].dtype) for name in models.MATRICES} == {"bfloat16"}
    equal(adapters.joined(part, params), params)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"adapter_rank": -1}, "adapter_rank=-1: must be"),
        ({"adapter_scale": 0.0}, "adapter_scale=0.0: must be a number in"),
        ({"adapter_modules": ("query", "embedding")}, "some of query, key, value, attention_output, gate, up, down"),
        (
            {"experts": 4, "experts_per_token": 2, "expert_hidden": 8},
            "gate, up, down cannot have adapters with experts=4; choose some of query, key",
        ),
    ],
)
def test_what_makes_no_adapter_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(ADAPTED, **fields)


@pytest.mark.full
def test_a_public_checkpoint_in_and_a_plain_one_out(tmp_path):
    base = models.build(PLAIN).init(jax.random.key(5))
    weights.save(str(tmp_path / "base"), PLAIN, base, family="qwen2")
    mesh = sharding.make_mesh({"fsdp": 8})
    shapes = jax.eval_shape(MODEL.init, jax.random.key(0))
    layout = sharding.param_sharding(mesh, MODEL.axes, shapes)
    params = weights.load(str(tmp_path / "base"), ADAPTED, layout, jax.random.key(7))
    jax.tree.map(lambda x, s: None if x.sharding == s else pytest.fail(f"{s}"), params, layout)
    equal(adapters.merged(ADAPTED, params)[1], base)
    fresh = MODEL.init(jax.random.key(7))
    equal(adapters.trained(params), adapters.trained(fresh))
    weights.save(str(tmp_path / "out"), ADAPTED, stirred(params), family="qwen2")
    back = weights.load(str(tmp_path / "out"), PLAIN)
    equal(back, adapters.merged(ADAPTED, stirred(params))[1])


# --- training --------------------------------------------------------------------------------------

FIELDS = {
    "model__adapter_rank": 4,
    "learner__share_prompt": False,
    "learner__microbatches": 2,
    "seam__penalty": "exact_kl('js', 0.1) | kl('k3', 0.1)",
    "seam__after": "reset_reference(2)",
}


def rollout(step, state, key):
    """Return a batch of the shapes of a rollout, without the program that makes one."""
    shape, rng = jax.eval_shape(step.rollout, state, key), np.random.default_rng(0)
    zero = jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shape)
    rows, width = zero.mask.shape
    return zero.replace(
        mask=np.ones_like(zero.mask),
        reward=(np.arange(rows) % 3 == 0).astype(np.float32),
        group=np.arange(rows, dtype=np.int32) // step.setup.samples,
        valid=np.ones_like(zero.valid) if zero.valid is not None else None,
        context=zero.context.replace(mask=np.ones_like(zero.context.mask)),
        action=zero.action.replace(token=rng.integers(0, 12, (rows, width)).astype(np.int32)),
        behaviour_logp=np.full((rows, width), -2.5, np.float32),
        raw_logp=np.full((rows, width), -2.5, np.float32),
    )


@functools.cache
def trained(**mesh):
    """Return step, states before, after one and after two updates, on the host, and the metrics of the two."""
    program = tiny.program("nsr()", **FIELDS, **mesh)
    (step,) = program.steps
    state = step.begin(None, program.key)
    rows, states, metrics = rollout(step, state, program.key), [jax.device_get(state)], []
    for _ in range(2):
        state, values = step.update(state, rows, program.key)
        states.append(jax.device_get(state))
        metrics.append({name: float(x) for name, x in values.items() if name != "rows"})
    return step, state, states, metrics


def size(tree):
    return sum(x.size for x in jax.tree.leaves(tree))


@pytest.mark.full
def test_only_adapters_move_and_only_they_are_kept_twice():
    _, _, (before, _, after), metrics = trained()
    for path, x in jax.tree_util.tree_leaves_with_path(before.params["policy"]):
        y = functools.reduce(lambda tree, key: tree[key.key], path, after.params["policy"])
        assert np.any(x != y) == adapters.is_adapter(path), jax.tree_util.keystr(path)
    trained_size = size(adapters.trained(before.params["policy"]))
    assert 0 < trained_size < size(before.params) / 2
    assert size(before.reference) == trained_size
    moments = [x for x in jax.tree.leaves(before.opt_state) if x.ndim]
    assert size(moments) == 2 * trained_size
    np.testing.assert_allclose([metrics[0]["kl"], metrics[0]["loss/kl"]], 0, atol=1e-7)
    assert metrics[1]["loss/kl"] > 0.1 * metrics[1]["kl"] > 1e-9
    equal(after.reference, adapters.trained(after.params["policy"]))  # reset


@pytest.mark.full
def test_the_reference_is_the_model_with_its_adapter_switched_off():
    step, _, (_, after, _), _ = trained()
    model = step.setup.networks["policy"]
    token = jnp.asarray(np.arange(24).reshape(2, 12) % 12, jnp.int32)
    params = after.params["policy"]
    hidden = jax.jit(lambda params: model.apply(params, token, token >= 0))
    policy, reference = hidden(params), hidden(adapters.joined(after.reference, params))
    plain = dataclasses.replace(model.architecture, adapter_rank=0)
    without = models.build(plain, model.layout)
    base = jax.jit(lambda params: without.apply(params, token, token >= 0))(params)
    np.testing.assert_array_equal(reference, base)
    assert np.abs(policy - base).max() > 1e-3


@pytest.mark.full
def test_eight_devices_equal_one():
    _, _, (_, _, one), metrics = trained()
    step, state, (_, _, many), others = trained(mesh__fsdp=8)
    jax.tree.map(lambda x, s: None if x.sharding.is_equivalent_to(s, x.ndim) else pytest.fail(), state, step.sharding)
    split = [x for x in jax.tree.leaves(state.reference) if not x.sharding.is_fully_replicated]
    assert len(split) == 7  # of each pair, the matrix whose dimension is the width
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5, rtol=0), one.params, many.params)
    np.testing.assert_allclose(others[1]["loss"], metrics[1]["loss"], atol=1e-5)


@pytest.mark.full
def test_such_a_state_is_checkpointed(tmp_path):
    step, state, (_, _, after), _ = trained()
    with checkpoints.Checkpointer(tmp_path / "run") as saver:
        saver.save(2, state, {})
    restored, _, _ = checkpoints.Checkpointer(tmp_path / "run").restore(step.shape)
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    equal(restored, after)


@pytest.mark.full
def test_a_critic_trains_its_head_beside_its_adapters():
    program = tiny.program("ppo(kl=0.0)", model__adapter_rank=4)
    (step,) = program.steps
    value = adapters.trained(step.shape.params["value"])
    assert value["scalar"].shape == (32,) and value["embedding"] is None
    moments = [x for x in jax.tree.leaves(step.shape.opt_state[1]) if x.ndim]
    assert sum(x.size for x in moments) == 2 * sum(x.size for x in jax.tree.leaves(value))
