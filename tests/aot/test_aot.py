"""Ahead-of-time compilation for TPUs: counts equal those derived by hand, and programs that do not fit are refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec

from rljax import models
from rljax.aot import collectives, compiling, hlo, live, traffic
from rljax.host import flops
from tests.aot.aot_cases import LOOP, edited
from tests.support import tiny

f32 = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)


# --- the text of a program ------------------------------------------------------------


EIGHT = collectives.Layout(("data", "fsdp"), (2, 4), (0,) * 8)


def test_a_program_is_parsed_with_its_loops():
    module = hlo.parse(LOOP)
    assert module.entry == "main" and list(module.computations) == ["sum", "less", "condition", "body", "main"]
    times = {r.instruction.name: r.times for r in hlo.runs(module)}
    assert (times["all"], times["gathered"], times["lt"]) == (1, 5, 6)  # the condition runs once more than the body
    assert "add.9" not in times  # the combining computation of an all-reduce is not counted


_PLACED = """BufferAssignment:
allocation 0: size 96, parameter 0, shape |f32[3,8]| at ShapeIndex {}, maybe-live-out:
 value: <1 x.1 @0> (size=96,offset=0): f32[3,8]{1,0}
allocation 1: size 999, color 5, parameter 1, shape |f32[2,16]| at ShapeIndex {}:
allocation 2: size 4, thread-local:
 value: <2 lt @0> (size=4,offset=0): pred[]
allocation 3: size 1152, preallocated-temp:
 value: <3 y @0> (size=512,offset=0): f32[8,16]{1,0}
 value: <4 loop{1} (phi) @0> (size=512,offset=0): f32[8,16]{1,0}
 value: <5 gathered @0> (size=512,offset=512): f32[8,16]{1,0}
 value: <6 z{} @0> (size=128,offset=1024): f32[2,16]{1,0}
 value: <7 all @0> (size=640,offset=512): f32[10,16]{1,0}
"""
_LIVED = """HloLiveRange (max 9):
  InstructionSequence:
    0:x.1
  BufferLiveRange:
    x.1{}:0-9
    y{}:1-3
    loop{1}:3-6
    gathered{}:2-5
    z{}:7-8
    all{}:8-9
  Live ranges at 3 (peak):
    y{}: 512 bytes (cumulative: 512 bytes)
"""


def test_values_at_one_place_are_one_buffer_of_the_peak(tmp_path):
    for kind, text in (("buffer-assignment", _PLACED), ("live-range", _LIVED)):
        (tmp_path / f"module_1.jit_f.{kind}.txt").write_text(text)
    assert set(live.at_peak(tmp_path)) == {  # instruction 3: y becomes the loop's state; memory of hosts does not count
        live.Buffer(96, argument=0),
        live.Buffer(512, (8, 16), ("y", "loop")),
        live.Buffer(512, (8, 16), ("gathered",)),
    }
    (tmp_path / "module_1.jit_f.live-range.txt").unlink()
    assert live.at_peak(tmp_path) == ()


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


# --- operations from shapes -----------------------------------------------------------


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


def test_a_branch_in_a_loop_counts_as_often_as_it_is_assumed_to_run():
    big = jnp.ones((4096, 8))

    def half(x, big):
        return jax.lax.fori_loop(0, 8, lambda i, s: jax.lax.cond(i >= 4, lambda: s + big.sum(0), lambda: s), x)

    module = hlo.parse(jax.jit(half).lower(big[0], big).compile().as_text())
    rare, often = (traffic.moved(module, hlo.Assumed(branch=share)) for share in (0.0, 0.5))
    assert 4 * big.nbytes <= often - rare < 4.01 * big.nbytes
    assert traffic.moved(module) - rare == pytest.approx(2 * (often - rare))


@pytest.mark.parametrize(("length", "block"), [(41, 4), (40, 4), (40, 0), (40, 64)])
def test_cache_blocks_in_use_are_those_of_every_column(length, block):
    fields = {"task": f"arithmetic(completion_length={length})", "sampler__cache_block": block}
    assumed = compiling.blocks(tiny.program(**fields).steps[0])
    used = [1 + column // (block or length) for column in range(length - 1)]  # no column for the last token
    assert assumed.trips == pytest.approx(np.mean(used))
    beside = [
        [column >= start for column in range(length - 1)]
        for start in range(block or length, length - 1, block or length)
    ]
    assert assumed.branch == pytest.approx(np.mean(beside) if beside else 1.0)
