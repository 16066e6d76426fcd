"""Ahead-of-time compilation for TPUs: counts equal those derived by hand, and programs that do not fit are refused."""

import functools
import json
import math
import os
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rljax import models, types
from rljax.aot import collectives, flops, hlo, page, programs, report, roofline, scaling, topology, traffic
from rljax.config import files
from rljax.models import scoring
from rljax.training import sharding
from tests import tiny

ROOT = pathlib.Path(__file__).parent.parent
f32 = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)

# --- the text of a program ----------------------------------------------------------------------

# A loop of 5 iterations that gathers a weight f32[2,16] from 4 devices into f32[8,16] and multiplies with it; then a
# sum over all 8 devices. The counter starts at 0; its bound is a constant inside a fusion.
LOOP = """\
HloModule loop, is_scheduled=true

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add.9 = f32[] add(%a, %b)
}

%less (p: s32[]) -> pred[] {
  %p = s32[] parameter(0)
  %five = s32[] constant(5)
  ROOT %lt = pred[] compare(%p, %five), direction=LT
}

%condition (s: (s32[], f32[3,8], f32[2,16])) -> pred[] {
  %s = (s32[], f32[3,8]{1,0:T(8,128)}, /*index=2*/f32[2,16]{1,0:T(8,128)}) parameter(0)
  %count = s32[] get-tuple-element(%s), index=0
  ROOT %more = pred[] fusion(%count), kind=kLoop, calls=%less
}

%body (t: (s32[], f32[3,8], f32[2,16])) -> (s32[], f32[3,8], f32[2,16]) {
  %t = (s32[], f32[3,8]{1,0:T(8,128)}, f32[2,16]{1,0:T(8,128)}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %x = f32[3,8]{1,0:T(8,128)} get-tuple-element(%t), index=1
  %w = f32[2,16]{1,0:T(8,128)S(1)} get-tuple-element(%t), index=2
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %gathered = f32[8,16]{1,0:T(8,128)} all-gather(%w), channel_id=1, replica_groups=[2,4]<=[8], dimensions={0}
  %y = f32[3,16]{1,0:T(8,128)} dot(%x, %gathered), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %z = f32[3,8]{1,0:T(8,128)} slice(%y), slice={[0:3], [0:8]}
  ROOT %out = (s32[], f32[3,8], f32[2,16]) tuple(%next, %z, %w)
}

ENTRY %main (x: f32[3,8], w: f32[2,16]) -> f32[3,8] {
  %x.1 = f32[3,8]{1,0:T(8,128)} parameter(0)
  %w.1 = f32[2,16]{1,0:T(8,128)} parameter(1)
  %zero = s32[] constant(0)
  %start = (s32[], f32[3,8], f32[2,16]) tuple(%zero, %x.1, %w.1)
  %loop = (s32[], f32[3,8], f32[2,16]) while(%start), condition=%condition, body=%body, metadata={op_name="loop"}
  %last = f32[3,8]{1,0:T(8,128)} get-tuple-element(%loop), index=1
  ROOT %all = f32[3,8]{1,0:T(8,128)} all-reduce(%last), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=%sum
}
"""
EIGHT = collectives.Layout(("data", "fsdp"), (2, 4), (0,) * 8)


def edited(*pairs):
    text = LOOP
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return hlo.parse(text)


def test_a_program_is_parsed_with_its_loops():
    module = hlo.parse(LOOP)
    assert module.entry == "main" and list(module.computations) == ["sum", "less", "condition", "body", "main"]
    times = {r.instruction.name: r.times for r in hlo.runs(module)}
    assert (times["all"], times["gathered"], times["lt"]) == (1, 5, 6)  # the condition runs once more than the body
    assert "add.9" not in times  # the combining computation of an all-reduce is not counted


@pytest.mark.parametrize(
    ("edits", "trips"),
    [
        ([("%five = s32[] constant(5)", "%five = s32[] constant(12)")], 12),
        ([("%zero = s32[] constant(0)", "%zero = s32[] constant(2)")], 3),  # 2, 3, 4
        ([("%one = s32[] constant(1)", "%one = s32[] constant(2)")], 3),  # 0, 2, 4
        ([("direction=LT", "direction=LE")], 6),
        ([("compare(%p, %five), direction=LT", "compare(%five, %p), direction=GT")], 5),
        ([('op_name="loop"}', 'op_name="loop"}, backend_config={"known_trip_count":{"n":"7"}}')], 7),
        (
            [("%five = s32[] constant(5)", "%five = s32[] parameter(1)"), ("fusion(%count)", "fusion(%count, %none)")],
            None,
        ),
    ],
)
def test_the_trip_count_of_a_loop(edits, trips):
    module = edited(*edits)
    loop = module.computations["main"].instructions["loop"]
    assert hlo.trip_count(module, module.computations["main"], loop) == trips


def test_a_loop_with_an_early_exit_has_its_largest_trip_count():
    # as in decoding: some row is live, and position + 1 < 5
    module = edited(
        ("ROOT %lt = pred[] compare(%p, %five), direction=LT", "%lt = pred[] compare(%q, %five), direction=LT\n"
         "  %live = pred[] parameter(1)\n  ROOT %both = pred[] and(%live, %lt)"),
        ("%five =", "%step = s32[] constant(1)\n  %q = s32[] add(%p, %step)\n  %five ="),
        ("fusion(%count)", "fusion(%count, %some)"),
    )  # fmt: skip
    main = module.computations["main"]
    assert hlo.trip_count(module, main, main.instructions["loop"]) == 4


def test_collectives_are_counted_with_their_loops():
    gather, reduce = collectives.find(hlo.parse(LOOP), EIGHT)
    # each of 4 chips sends its 2 x 16 x 4 = 128 bytes to 3 others, 5 times
    assert (gather.kind, gather.axes, gather.group, gather.sent) == ("all-gather", ("fsdp",), 4, 5 * 3 * 128)
    # 3 x 8 x 4 = 96 bytes, 2 x 7/8 of them
    assert (reduce.kind, reduce.axes, reduce.sent) == ("all-reduce", ("data", "fsdp"), 2 * 96 * 7 / 8)
    assert collectives.sent([gather, reduce], "ici") == 1920 + 168


@pytest.mark.parametrize(
    ("text", "expected", "axes"),
    [
        ("replica_groups={{0,1,2,3},{4,5,6,7}}", [[0, 1, 2, 3], [4, 5, 6, 7]], ("fsdp",)),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", [[0, 4], [1, 5], [2, 6], [3, 7]], ("data",)),
        ("replica_groups=[2,4]<=[8], dimensions={0}", [[0, 1, 2, 3], [4, 5, 6, 7]], ("fsdp",)),
        ("replica_groups={}", [list(range(8))], ("data", "fsdp")),
        ("replica_groups=mesh['x'=2,'y'=4] {'y'}, d", [[0, 1, 2, 3], [4, 5, 6, 7]], ("fsdp",)),
        ("replica_groups=mesh['x'=2,'y'=4] {'x','y'}", [list(range(8))], ("data", "fsdp")),
        # devices 0 4 1 5 2 6 3 7: y runs over pairs (0, 4), (1, 5), ...
        (
            "replica_groups=mesh['x'=4,'y'=2], device_ids=([2,4]T(1,0)) {'y'}",
            [[0, 4], [1, 5], [2, 6], [3, 7]],
            ("data",),
        ),
        ("replica_groups=mesh['x'=8] {'x':(2)4}", [[0, 1, 2, 3], [4, 5, 6, 7]], ("fsdp",)),
        ("replica_groups=mesh['x'=8] {'x':(1)2}", [[0, 4], [1, 5], [2, 6], [3, 7]], ("data",)),
        ("source_target_pairs={{0,1},{1,2},{2,3},{3,0}}", [[0, 1], [1, 2], [2, 3], [3, 0]], ("fsdp",)),
    ],
)
def test_device_groups_in_every_form(text, expected, axes):
    groups = collectives.groups(text, 8)
    assert sorted(groups) == sorted(expected) and EIGHT.along(groups) == axes


def test_groups_across_slices_use_the_data_center_network():
    two = collectives.Layout(("data", "fsdp"), (2, 4), (0,) * 4 + (1,) * 4)
    gather, reduce = collectives.find(hlo.parse(LOOP), two)
    assert (gather.network, reduce.network) == ("ici", "dcn") and two.between_slices == ("data",)
    with pytest.raises(ValueError, match="device groups in an unknown form"):
        collectives.groups("replica_groups=<new>", 8)


CUTTING = """\
%cutting (k: f32[5,2,16], n: s32[]) -> f32[2,16] {
  %k = f32[5,2,16]{2,1,0:T(8,128)} parameter(0)
  %n = s32[] parameter(1)
  ROOT %taken = f32[1,2,16]{2,1,0:T(8,128)} dynamic-slice(%k, %n, %n, %n)
}

%less (p"""


def test_bytes_moved_are_those_of_the_slices_read():
    # a fusion slices the weight out of a stack f32[5,2,16]; only the slice is read
    cut = "%cut = f32[2,16]{1,0:T(8,128)} fusion(%stack, %i), kind=kLoop, calls=%cutting"
    stack = "%stack = f32[5,2,16]{2,1,0:T(8,128)} parameter(1)"
    module = edited(
        ("%less (p", CUTTING),
        ("%one = s32[] constant(1)", f"%one = s32[] constant(1)\n  {stack}"),
        (
            "%gathered = f32[8,16]{1,0:T(8,128)} all-gather(%w)",
            f"{cut}\n  %gathered = f32[8,16]{{1,0:T(8,128)S(1)}} all-gather(%cut)",
        ),
    )
    by_name = {r.instruction.name: r for r in hlo.runs(module)}
    moved = {name: traffic._bytes(module, run) for name, run in by_name.items()}
    assert moved["cut"] == 128 + 4 + 128  # the slice, the index, the result; not 640 of the stack
    assert moved["gathered"] == 128  # its result is in vector memory
    assert moved["y"] == 96 + 3 * 16 * 4
    inside = sum(moved[name] for name in ("cut", "gathered", "y", "z", "next"))
    assert traffic.moved(module) == 5 * inside + 6 * moved["more"] + 192


# --- operations from shapes ---------------------------------------------------------------------


def test_operations_of_loops_and_branches():
    x, w, stack = f32((3, 4)), f32((4, 4)), f32((7, 4, 4))
    one = 2 * 3 * 4 * 4

    def scanned(x, stack):
        return jax.lax.scan(lambda c, w: (jax.jit(jnp.matmul)(c, w), None), x, stack)[0]

    def until(x, w):  # from 1, as decoding starts after its first token
        go = lambda c: (c[0] < 9) & (c[1][0, 0] < 5)  # noqa: E731
        return jax.lax.while_loop(go, lambda c: (c[0] + 1, c[1] @ w), (jnp.zeros((), jnp.int32) + 1, x))

    def branch(x, w):
        return jax.lax.cond(x[0, 0] > 0, lambda x: x @ w @ w, lambda x: x @ w, x)

    mesh = Mesh(np.array(jax.devices()[:8]).reshape(2, 4), ("data", "fsdp"))
    rows = {"in_specs": (PartitionSpec("data"), PartitionSpec()), "out_specs": PartitionSpec("data")}
    apart = jax.shard_map(jnp.matmul, mesh=mesh, **rows)
    assert flops.count(apart, f32((6, 4)), w) == 2 * one * 4  # 3 rows per device, replicated along fsdp
    assert flops.count(jnp.matmul, x, w) == one
    assert flops.count(scanned, x, stack) == 7 * one
    assert flops.count(until, x, w) == 8 * one
    assert flops.count(branch, x, w) == 2 * one
    assert flops.count(jax.vmap(jnp.matmul, (0, None)), f32((5, 3, 4)), w) == 5 * one
    ragged = f32((6, 4)), f32((3, 4, 5)), jax.ShapeDtypeStruct((3,), jnp.int32)
    assert flops.count(jax.lax.ragged_dot, *ragged) == 2 * 6 * 4 * 5  # each row is multiplied with one matrix
    quarter = flops.of_jaxpr(jax.make_jaxpr(jax.lax.ragged_dot)(*ragged), flops.Assumed(experts=12))
    assert quarter == 2 * 6 * 4 * 5 / 4  # 3 of 12 experts have a quarter of the rows
    both = jax.grad(lambda x, w, n: jnp.sum(jax.lax.ragged_dot(x, w, n)), (0, 1))
    assert flops.count(both, *ragged) == 3 * 2 * 6 * 4 * 5


def test_a_gradient_costs_three_times_its_function_and_four_times_with_rematerialization():
    def loss(stack, x, keep):
        block = lambda c, w: (jnp.tanh(jnp.tanh(c @ w) @ w), None)  # noqa: E731
        block = block if keep else jax.checkpoint(block)
        return jnp.sum(jax.lax.scan(block, x, stack)[0] ** 2)

    arguments = f32((7, 4, 4)), f32((3, 4))
    once = flops.count(functools.partial(loss, keep=True), *arguments)
    for keep, times in ((True, 3), (False, 4)):
        both = jax.grad(functools.partial(loss, keep=keep), (0, 1))
        assert flops.count(both, *arguments) == times * once


@pytest.mark.parametrize("tied", [True, False])
def test_operations_of_a_model_are_two_for_each_parameter_and_token_and_attention(tied):
    a = models.Architecture(
        vocabulary=64, layers=2, width=16, heads=4, kv_heads=2, head_size=8, hidden=24, tied=tied, attention="plain"
    )
    model, rows, width = models.build(a), 3, 10
    params = jax.eval_shape(model.init, jax.random.key(0))
    token = jax.ShapeDtypeStruct((rows, width), jnp.int32)
    count = flops.count(lambda p, t: model.logits(p, model.apply(p, t, t == 0)), params, token)
    query, kv, out, gated = 16 * 4 * 8, 16 * 2 * 8, 4 * 8 * 16, 3 * 16 * 24
    parameters = 2 * (query + 2 * kv + out + gated) + 16 * 64
    attention = 2 * 2 * 2 * 4 * 8 * width * width  # layers, scores and values, 2 H K each, all pairs
    assert count == rows * (2 * parameters * width + attention)


# --- compiled for a TPU -------------------------------------------------------------------------


@functools.cache
def target():
    try:
        return topology.describe("v5e:4x4")
    except RuntimeError as error:
        pytest.skip(str(error))


def test_a_loop_over_gathered_weights_sends_the_expected_bytes():
    mesh = Mesh(np.array(target().devices).reshape(4, 4), ("data", "fsdp"))

    def abstract(shape, *names):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(*names)))

    def function(x, stack):  # 5 iterations; each gathers f32[256,256], of which a chip stores a quarter
        return jnp.sum(jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, stack)[0])

    x, stack = abstract((1024, 256), ("data", "fsdp")), abstract((5, 256, 256), None, "fsdp")
    with programs.uncached():
        compiled = jax.jit(function).lower(x, stack).compile()
    layout = collectives.Layout(mesh.axis_names, (4, 4), (0,) * 16)
    sends = collectives.find(hlo.parse(compiled.as_text()), layout)
    sent = {(c.axes, c.network): 0.0 for c in sends}
    for c in sends:
        sent[c.axes, c.network] += c.sent
    # in bfloat16, to which the chip rounds operands: 3/4 of 256 x 256 x 2 bytes per iteration, gathered or permuted
    assert sent[("fsdp",), "ici"] / (5 * 3 / 4 * 256 * 256 * 2) == pytest.approx(1, abs=0.01)
    # only the sum communicates over all chips
    assert sum(v for k, v in sent.items() if k != (("fsdp",), "ici")) < 100


@pytest.mark.full
def test_a_tpu_sums_the_gradients_of_bfloat16_parameters_in_float32():
    mesh = sharding.make_mesh({"data": 4, "fsdp": 4}, target().devices)
    architecture = models.Architecture(
        **{
            "vocabulary": 512,
            "layers": 1,
            "width": 128,
            "heads": 4,
            "kv_heads": 2,
            "hidden": 256,
            "bias": ("query", "key", "value"),
        },
        **{"experts": 4, "experts_per_token": 2, "expert_hidden": 128, "dtype": "bfloat16", "param_dtype": "bfloat16"},
    )
    model = models.build(architecture, sharding.Layout(mesh))
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    layout = sharding.param_sharding(mesh, model.axes, shapes)
    params = jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, layout)
    rows = jax.ShapeDtypeStruct((64, 32), jnp.int32, sharding=sharding.batch_sharding(mesh))

    def loss(params, token):
        mask = jnp.ones(token.shape)
        context, action = types.Context(token, mask), types.Action(token)
        rollout = types.Rollout(mask, mask[:, 0], token[:, 0], context=context, action=action)
        return jnp.sum(scoring.score(model, params, rollout, types.Needs(), chunk=64, vocabulary=256).logp)

    with programs.uncached():
        text = jax.jit(jax.grad(loss), out_shardings=layout).lower(params, rows).compile().as_text()
    summed = re.findall(r" = (.*?) (?:all-reduce|reduce-scatter)(?:-start)?\(", text)
    assert "f32" in "".join(summed) and "bf16" not in "".join(summed)  # on this mesh only gradients are summed


@functools.cache
def step():
    return programs.make(small(), target(), (16, 32))


def small(**fields):
    config = tiny.config()
    config.model.update({"vocabulary": 512, "layers": 2, "width": 128, "heads": 4, "kv_heads": 2, "hidden": 256})
    config.model.update({"scan": True, "attention": "plain", "remat": "full", "dtype": "bfloat16", **fields})
    config.mesh.update({"data": 1, "fsdp": 16})
    config.batch.update({"prompts": 32, "samples": 4})
    config.learner.update({"microbatches": 2, "share_prompt": False, "vocabulary": 0})
    return config


@pytest.mark.default_tier("update")
@pytest.mark.parametrize("name", ["rollout", "update"])
def test_decoding_and_training_compile_for_a_tpu_and_fit(name):
    record = report.describe(step(), programs.compile_one(step(), name, target()), target())
    assert record["peak"] < record["hbm"] == 2**34 and record["compile_s"] < 180
    assert {"all-gather", "collective-permute"} & {c["kind"] for c in record["collectives"]}
    assert all(c["axes"] == ["fsdp"] and c["network"] == "ici" for c in record["collectives"])
    # a layer of 128 x (4 + 2 x 2) x 32 + 4 x 32 x 128 + 3 x 128 x 256, by hand; 128 rows, 32 prompts
    body, head, pair = 2 * (128 * 8 * 32 + 128 * 128 + 3 * 128 * 256), 512 * 128, 4 * 4 * 32 * 2
    if name == "rollout":
        tokens = 32 * 16 + 128 * 31
        # prefill is dense over the prompt; a decoded token attends to the whole cache, 16 + 31 columns
        attention = pair * (32 * 16 * 16 + 128 * 31 * (16 + 31))
        by_hand = 2 * body * tokens + 2 * head * (32 + 128 * 31) + attention
    else:
        width = 16 + 32  # full rows: the forward pass, its recomputation, and twice that backward
        by_hand = 4 * (2 * body * 128 * width + pair * 128 * width**2 + 2 * head * 128 * 32)
        by_hand -= 2 * 2 * 256 * 128 * 128 * width  # a layer's last product is not recomputed
    assert record["flops"] * 16 == pytest.approx(by_hand, rel=1e-9)
    assert record["unknown_loops"] <= 3 and record["unread"] == 0
    text = report.table(record)
    assert f"{name}:" in text and "roofline" in text and "fsdp" in text


def test_a_program_that_does_not_fit_is_refused_with_its_largest_arrays():
    step = programs.make(small(vocabulary=2**28), target(), (16, 32))
    with pytest.raises(programs.DoesNotFitError) as refused:
        programs.compile_one(step, "update", target())
    # three float32 copies of a table of 128 x 2^28 numbers, on 16 chips
    assert f"arguments alone are {3 * 4 * 128 * 2**28 / 16 / 2**30:.1f} GiB, and a chip has 16 GiB" in str(
        refused.value
    )
    assert "8.00 GiB  params.policy.embedding" in str(refused.value)
    message = "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory (47.28G) exceeds available HBM (15.75G)."
    text = programs._too_large(step, "update", target(), programs.trace(step, "update"), message)
    assert text.startswith("update does not fit v5e:4x4: it needs 47.28G, and a chip has 15.75G")
    assert "rljax/models/" in text  # the source line of an intermediate array


def test_errors_name_the_nearest_valid_name():
    with pytest.raises(ValueError, match=r"no TPU 'v5pp'. Did you mean 'v5p'"):
        topology.describe("v5pp:4x4x4")
    with pytest.raises(ValueError, match="v5e has the form v5e:NxN, such as v5e:4x4"):
        topology.describe("v5e:4x4x4")
    with pytest.raises(ValueError, match="Did you mean 'rollout'"):
        programs.trace(step(), "rolout")
    missing = [sys.executable, "-c", "import sys; sys.modules['libtpu'] = None\n"
               "from rljax.aot import topology; topology.describe('v5e:4x4')"]  # fmt: skip
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TPU_")}
    done = subprocess.run(missing, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert "RuntimeError: the TPU compiler is not installed. To fix, in the checkout: pip install" in done.stderr


def test_a_roofline_is_work_over_rates():
    kind = topology.KINDS["v5e"]
    times = roofline.times(kind, 197e12, 819e9 / 2, 50e9, 0)
    assert (times.compute, times.memory, times.ici, times.dcn) == pytest.approx((1, 0.5, 0.25, 0))
    assert (times.overlapped, times.serial) == pytest.approx((1, 1.75)) and times.bound == "compute"
    assert topology.KINDS["tpu7x"].share().hbm == 96 * 2**30  # two devices per chip


def test_the_command_names_an_unknown_topology():
    def run(*arguments):
        command = [sys.executable, "tpu/compile.py", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    done = run("--config", "quickstart", "--topology", "v7:4x4")
    assert done.returncode == 2 and "error: topology 'v7:4x4'" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.full
def test_without_a_tpu_a_command_prints_no_errors_of_libtpu_and_the_compiler_is_found():
    code = """if True:
        import jax
        from rljax import __main__
        from rljax.aot import topology
        try:
            __main__.run("sharding", ["quickstart:quick"])
        except SystemExit as done:
            assert not done.code
        print(jax.config.jax_platforms, jax.default_backend(), len(topology.describe("v5e:2x2").devices))
    """
    environment = {k: v for k, v in os.environ.items() if k not in ("JAX_PLATFORMS", "XLA_FLAGS")}
    command, where = [sys.executable, "-c", code], {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment | where, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    # None: JAX chooses among all other platforms, so a GPU comes before the CPU
    assert done.stdout.splitlines()[-1] == "None cpu 4"


def test_a_task_without_its_files_is_refused_with_the_flags_that_replace_it():
    with pytest.raises(ValueError, match="--prompt_length and --completion_length"):
        programs.make(files.load("gsm8k"), target())


def test_which_braces_end_a_computation():
    kernel = '%k = f32[3,8] custom-call(%x), frontend_attributes={kernel_metadata={\n"block":"{128}"\n}}, a={}\n  %y ='
    add = "ROOT %add.9 = f32[] add(%a, %b)\n}"
    module = edited(("%y =", kernel), (add, f'{add}, execution_thread="sparsecore"'))
    assert list(module.computations) == ["sum", "less", "condition", "body", "main"]
    assert list(module.computations["body"].instructions)[-4:] == ["k", "y", "z", "out"]
    assert hlo.unread(module) == []


# --- the page -----------------------------------------------------------------------------------


@pytest.mark.parametrize("row", page.ROWS, ids=lambda row: row.name)
def test_rows_of_the_page_use_all_chips(row):
    _, shape = topology.read(row.topology)
    config = files.load("pretrained", row.model)
    for field, value in row.fields.items():
        files.override(config, field, value)
    mesh = config.mesh.to_dict()
    assert math.prod(mesh.values()) == math.prod(shape) * row.slices
    # every chip has complete prompts in every micro-batch
    rows = math.prod(size for axis, size in mesh.items() if axis not in ("tensor", "sequence"))
    assert row.prompts % (config.learner.microbatches * rows) == 0


def test_the_page_is_generated_from_its_records():
    records = json.loads((ROOT / "tpu" / "topologies.json").read_text())
    assert (ROOT / "tpu" / "TOPOLOGIES.md").read_text() == page.page(records)
    for size, chips in scaling.SIZES.items():
        assert math.prod(topology.read(size)[1]) == chips
