"""The mesh, the table of rules, and the same numbers on one device and on eight."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from rljax import models, types
from rljax.models.scores import scoring
from rljax.run import programs
from rljax.run import sharding as page
from rljax.training import sharding
from rljax.training.learning import splits
from tests.support import tiny

ARCHITECTURE = models.Architecture(
    vocabulary=32, layers=2, width=16, heads=4, kv_heads=2, hidden=24, tied=False, attention="blocked"
)
EXPERTS = dataclasses.replace(ARCHITECTURE, experts=8, experts_per_token=3, expert_hidden=12)
NEEDS = types.Needs(entropy=True)


def _rollout() -> types.Rollout:
    rng = np.random.default_rng(0)
    mask = (np.arange(6)[None, :] < rng.integers(1, 7, (16, 1))).astype(np.float32)
    return types.Rollout(
        mask=jnp.asarray(mask),
        reward=jnp.zeros(16),
        group=jnp.arange(16),
        context=types.Context(
            token=jnp.asarray(rng.integers(0, 32, (16, 2)), jnp.int32), mask=jnp.ones((16, 2), jnp.float32)
        ),
        action=types.Action(token=jnp.asarray(rng.integers(0, 32, (16, 6)), jnp.int32)),
    )


def _laid_out(mesh: jax.sharding.Mesh, architecture: models.Architecture = ARCHITECTURE):
    """The model that knows the mesh, and the same parameters on every mesh."""
    model = models.build(architecture, sharding.Layout(mesh))
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    params = jax.tree.map(lambda x: rng.normal(0.2, 0.3, x.shape).astype(np.float32), shapes)
    return model, jax.device_put(params, sharding.param_sharding(mesh, model.axes, shapes))


def _hidden(mesh: jax.sharding.Mesh):
    model, params = _laid_out(mesh)

    @functools.partial(jax.jit, out_shardings=sharding.batch_sharding(mesh))
    def run(params, rollout):
        rollout = sharding.constrain(rollout, mesh)
        return model.apply(params, rollout.action.token, rollout.mask)

    return run(params, _rollout())


def _slope(mesh: jax.sharding.Mesh, architecture: models.Architecture = ARCHITECTURE, samples: int = 0):
    """Loss and gradient; with ``samples`` adjacent rows read their common prompt once."""
    model, params = _laid_out(mesh, architecture)

    @jax.jit
    def run(params, rollout):
        rollout = sharding.constrain(rollout, mesh)

        def loss(params):
            scores = scoring.score(model, params, rollout, NEEDS, chunk=4, samples=samples)
            return jnp.sum(scores.logp * rollout.mask) + jnp.sum(scores.entropy)

        return jax.value_and_grad(loss)(params)

    rollout = _rollout()
    if samples:
        shared = jax.tree.map(lambda x: jnp.repeat(x[::samples], samples, axis=0), rollout.context)
        rollout = rollout.replace(context=shared)
    return run(params, rollout)


@functools.cache
def _one() -> jax.sharding.Mesh:
    return sharding.make_mesh({}, jax.devices()[:1])


@functools.cache
def _single():
    return _hidden(_one())


@functools.cache
def _slope_of_one(architecture: models.Architecture, samples: int):
    return _slope(_one(), architecture, samples)


@pytest.mark.default_tier(1)
@pytest.mark.parametrize("shape", [{"fsdp": 8}, {"data": 2, "fsdp": 4}], ids=["fsdp", "data-fsdp"])
def test_hidden_states_on_eight_devices_equal_one(shape):
    hidden = _hidden(sharding.make_mesh(shape))
    assert len({shard.index[0].start for shard in hidden.addressable_shards}) == 8
    np.testing.assert_allclose(hidden, _single(), rtol=1e-5, atol=1e-5)


@pytest.mark.default_tier("data-fsdp-tensor")
@pytest.mark.parametrize(
    ("shape", "architecture", "samples"),
    [
        ({"data": 2, "fsdp": -1, "tensor": 2}, ARCHITECTURE, 0),
        ({"data": 2, "sequence": 2, "tensor": 2}, ARCHITECTURE, 2),  # 4 heads and 2 of keys over 4: keys repeated
        ({"fsdp": 4, "tensor": 2}, dataclasses.replace(ARCHITECTURE, remat="full"), 2),
        ({"fsdp": 2, "expert": 4}, EXPERTS, 0),
        ({"data": 2, "expert": 2, "tensor": 2}, EXPERTS, 2),
        ({"fsdp": 2, "expert": 2, "sequence": 2}, EXPERTS, 0),
    ],
    ids=["data-fsdp-tensor", "sequence", "recomputed", "expert", "expert-tensor", "expert-sequence"],
)
def test_scores_and_gradient_over_a_mesh_equal_one_device(shape, architecture, samples):
    loss, gradient = _slope(sharding.make_mesh(shape), architecture, samples)
    one_loss, one_gradient = _slope_of_one(architecture, samples)
    np.testing.assert_allclose(loss, one_loss, rtol=1e-5)
    for left, right in zip(jax.tree.leaves(gradient), jax.tree.leaves(one_gradient), strict=True):
        assert np.any(right != 0)
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-4)


def test_mesh_fills_and_is_automatic():
    mesh = sharding.make_mesh({"data": 2, "fsdp": -1})
    assert dict(mesh.shape) == {"data": 2, "fsdp_tensor": 1, "fsdp": 4, "expert": 1, "sequence": 1, "tensor": 1}
    assert mesh.axis_types == (AxisType.Auto,) * 6
    assert dict(sharding.make_mesh().shape)["fsdp"] == 8
    assert sharding.make_mesh(None, jax.devices()[:2]).size == 2


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"model": 2}, "'model': choose from data, fsdp_tensor, fsdp, expert, sequence, tensor"),
        ({"data": 0}, "data=0"),
        ({"data": -1, "fsdp": -1}, "data and fsdp are both -1"),
        ({"data": 3, "fsdp": -1}, "data=3, fsdp=-1 does not fit 8 devices"),
        ({"data": 2, "fsdp": 2}, "does not fit 8 devices"),
    ],
)
def test_mesh_refuses(shape, message):
    with pytest.raises(ValueError, match=message):
        sharding.make_mesh(shape)


def test_parameters_follow_the_rules():
    mesh = sharding.make_mesh({"fsdp": 4, "tensor": 2})
    model = models.build(ARCHITECTURE)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    layout = sharding.param_sharding(mesh, model.axes, shapes)
    assert jax.tree.structure(layout) == jax.tree.structure(shapes)
    assert layout["layers"]["query"].spec == PartitionSpec(None, ("fsdp_tensor", "fsdp", "expert"), ("tensor",), None)
    assert layout["embedding"].spec == PartitionSpec(("tensor",), ("fsdp_tensor", "fsdp", "expert"))
    assert layout["layers"]["query"].shard_shape(shapes["layers"]["query"].shape) == (2, 4, 2, 4)
    assert layout["final_norm"].is_fully_replicated


def test_parameters_that_do_not_divide_are_named():
    model = models.build(ARCHITECTURE)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    mesh = sharding.make_mesh({"tensor": 8})
    with pytest.raises(ValueError, match=r"layers\.attention_output: dimension 1 \(heads, size 4\).*tensor=8"):
        sharding.param_sharding(mesh, model.axes, shapes)
    with pytest.raises(ValueError, match="parameter w: no rule for logical axis 'colour'"):
        sharding.param_sharding(mesh, {"w": ("colour",)}, {"w": jnp.zeros(8)})


def test_rows_that_do_not_divide_are_named():
    mesh = sharding.make_mesh({"data": 2, "fsdp": 4})
    sharding.check_rows(mesh, 16, "batch.prompts")
    with pytest.raises(ValueError, match=r"config\.batch\.prompts=12: rows must be divisible by 8 .*data=2 x .*fsdp=4"):
        sharding.check_rows(mesh, 12, "batch.prompts")


def test_constrain_splits_rows_and_leaves_the_rest():
    mesh = sharding.make_mesh({"data": 2, "fsdp": 4})
    tree = {"rows": jnp.zeros((16, 3)), "few": jnp.zeros((3, 2)), "number": jnp.zeros(())}
    split = jax.jit(lambda t: sharding.constrain(t, mesh))(tree)
    assert split["rows"].sharding.is_equivalent_to(sharding.batch_sharding(mesh), 2)
    assert split["few"].shape == (3, 2) and split["number"].shape == ()
    behind = jax.jit(lambda t: sharding.constrain(t, mesh, leading=1))(jnp.zeros((2, 8)))
    assert behind.sharding.shard_shape((2, 8)) == (2, 1)


def test_the_page_counts_what_lies_on_a_device():
    program = tiny.program("ppo(kl=0.1)", mesh__data=2, mesh__fsdp=2, mesh__tensor=1, mesh__expert=2)
    step = program.steps[-1]
    state = step.begin(None, program.key, None)
    rows = page.rows(step.shape, {module: program.model(module).axes for module in state.params})
    first = jax.devices()[0]
    for row, leaf in zip(rows, jax.tree.leaves(state), strict=True):
        (shard,) = [s for s in leaf.addressable_shards if s.device == first]
        assert row.bytes == shard.data.nbytes
        same = sum(s.index == shard.index for s in leaf.addressable_shards)
        assert same == np.prod([program.mesh.shape[axis] for axis in row.copied])
        assert bool(row.copied) == bool(page.why(row))
    text = page.page(program)
    assert all(row.name in text for row in rows)
    assert "fsdp, expert split expert or width, and this array has only (layers, None)" in text


@pytest.mark.full
def test_rollouts_of_resident_weights_are_the_same():
    fields = {
        "model__heads": 4,
        "model__kv_heads": 4,
        "model__scan": True,
        "model__vocabulary": 32,
        "sampler__cache_block": 2,
    }
    one = tiny.program(**fields)
    many = tiny.program(
        **fields, mesh__data=1, mesh__fsdp=2, mesh__fsdp_tensor=2, mesh__tensor=2, sampler__layout="resident"
    )
    rollouts = []
    for program in (one, many):
        step = program.steps[-1]
        state = step.begin(None, program.key, None)
        rollouts.append(jax.device_get(step.rollout(state, program.key)))
    np.testing.assert_array_equal(rollouts[0].action.token, rollouts[1].action.token)
    np.testing.assert_allclose(rollouts[0].behaviour_logp, rollouts[1].behaviour_logp, atol=2e-5)


def test_devices_that_repeat_work_are_told_of():
    fields = {"mesh__data": 1, "mesh__fsdp": 8}
    with pytest.warns(programs.SharedWorkWarning, match=r"4 prompts, over 1 of the 8 devices.*microbatches=2"):
        programs.build(tiny.config(phases=("main",), learner__microbatches=2, **fields))
    with pytest.raises(ValueError, match=r"attention='cudnn' .phase 'main'.: micro-batches of 4 prompts .* 8 devices"):
        programs.build(tiny.config(phases=("main",), learner__microbatches=2, model__attention="cudnn", **fields))
    setup = tiny.program(learner__share_prompt=False, learner__microbatches=2, **fields).steps[-1].setup
    assert splits.over_devices(setup) == [
        "an update: micro-batches of 16 rows, over 8 of the 8 devices that split rows"
    ]
