"""Ahead-of-time compilation for TPUs: compiled for a TPU; the page."""

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
from rljax.aot import collectives, compiling, hlo, page, report, roofline, scaling, topology
from rljax.config import files
from rljax.host import flops
from rljax.models.scores import scoring
from rljax.training import sharding
from tests.aot.aot_cases import edited
from tests.support import control, tiny

ROOT = pathlib.Path(__file__).parents[2]


# --- compiled for a TPU ---------------------------------------------------------------


@functools.cache
def target(name="v5e:4x4"):
    try:
        return topology.describe(name)
    except RuntimeError as error:
        pytest.skip(str(error))


def test_a_loop_over_gathered_weights_sends_the_expected_bytes():
    mesh = Mesh(np.array(target().devices).reshape(4, 4), ("data", "fsdp"))

    def abstract(shape, *names):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, PartitionSpec(*names)))

    def function(x, stack):  # 5 iterations; each gathers f32[256,256], of which a chip stores a quarter
        return jnp.sum(jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, stack)[0])

    x, stack = abstract((1024, 256), ("data", "fsdp")), abstract((5, 256, 256), None, "fsdp")
    with compiling.uncached():
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

    with compiling.uncached():
        text = jax.jit(jax.grad(loss), out_shardings=layout).lower(params, rows).compile().as_text()
    summed = re.findall(r" = (.*?) (?:all-reduce|reduce-scatter)(?:-start)?\(", text)
    assert "f32" in "".join(summed) and "bf16" not in "".join(summed)  # on this mesh only gradients are summed


@functools.cache
def step():
    return compiling.make(small(), target(), (16, 32)).steps[-1]


def small(**fields):
    config = tiny.config()
    config.model.update({"vocabulary": 512, "layers": 2, "width": 128, "heads": 4, "kv_heads": 2, "hidden": 256})
    config.model.update({"scan": True, "attention": "plain", "remat": "full", "dtype": "bfloat16", **fields})
    config.mesh.update({"data": 1, "fsdp": 16})
    config.batch.update({"prompts": 32, "samples": 4})
    config.learner.update({"microbatches": 2, "share_prompt": False, "vocabulary": 0})
    return config


def test_a_copy_of_the_weights_is_costed_by_what_a_device_receives():
    pod, config = target("v5p:2x2x4"), small()
    config.mesh.update({"rollout": 8, "fsdp": 8})
    program = compiling.make(config, pod, (16, 32))
    sampler = program.sampler.steps[-1]
    assert {*sampler.setup.mesh.devices.flat}.isdisjoint(program.steps[-1].setup.mesh.devices.flat)
    shards = [
        math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
        for x in jax.tree.leaves(sampler.shape.params["policy"])
    ]
    text = report.copied(sampler, program.steps[-1], pod)
    assert f"its devices receive {report.size(sum(shards))}, the others send {report.size(sum(shards))} each" in text
    assert f"at least {1000 * sum(shards) / 600e9:.3g} ms over ICI" in text  # v5p
    with pytest.raises(ValueError, match=r"'fused': this step has rollout, score, update, as config\.mesh\.rollout=8"):
        compiling.trace(program.steps[-1], "fused")


@pytest.mark.full
def test_some_chips_of_a_host_sample_and_the_others_update():
    host, config = target("v5e:2x2"), small(layers=1, width=32, heads=2, kv_heads=1, hidden=64)
    config.mesh.update({"rollout": 1, "fsdp": 1, "data": 3})
    config.batch.update({"prompts": 6})
    program = compiling.make(config, host, (16, 32))
    for step, count in ((program.sampler.steps[-1], 1), (program.steps[-1], 3)):
        assert step.setup.mesh.size == len({d.id for d in step.setup.mesh.devices.flat}) == count
    text = compiling.compile_one(program.steps[-1], "update", host).text
    assert re.search(r"all-reduce.*replica_groups=(\{\{0,1,2\}\}|mesh\['\w+'=3\]|\[1,3\])", text)


def test_chips_of_several_hosts_that_the_compiler_cannot_connect_are_refused():
    config = small()
    config.mesh.update({"rollout": 8, "fsdp": 8})
    with pytest.raises(ValueError, match=r"config\.mesh\.rollout=8: v5e:4x4 has 4 hosts.* 0, or --target v5e:2x2"):
        compiling.make(config, target(), (16, 32))


@pytest.mark.full
def test_the_programs_of_an_update_in_parts_do_the_work_of_the_whole_step():
    config = small()
    config.run.overlap = True
    parts = compiling.make(config, target(), (16, 32)).steps[-1]
    assert compiling.names(parts) == ["part", "score", "accumulate", "finish"]
    with pytest.raises(ValueError, match=r"'update': this step has .*, as config\.run\.overlap=True"):
        compiling.trace(parts, "update")

    def work(step, name):
        assumed, traced = compiling.assumed(step), compiling.trace(step, name)
        return flops.of_jaxpr(traced.jaxpr, assumed), roofline.model_flops(step.setup, name)

    count = parts.setup.learner.microbatches
    for part, whole in (("part", "rollout"), ("accumulate", "update")):
        assert np.multiply(count, work(parts, part)) == pytest.approx(work(step(), whole), rel=1e-9)
    assert work(parts, "finish") == (0, 0)


@pytest.mark.full
def test_a_world_of_several_turns_is_traced_as_a_step_plays_it():
    config = small()
    config.task, config.sampler.layout = "retry(found=0.3, turns=5, persistence=0.1)", "resident"
    step = compiling.make(config, target()).steps[-1]
    assert compiling.names(step) == ["rollout", "score", "update", "fused"]
    rows = compiling.trace(step, "rollout").out_info
    assert rows.turn.shape == rows.mask.shape == (128, step.setup.task.completion_length)


@pytest.mark.full
def test_a_control_world_is_traced_as_a_step_acts_in_it():
    step = compiling.make(control.config(batch__prompts=16), target()).steps[-1]
    rows = compiling.trace(step, "rollout").out_info
    assert rows.motion.observation.shape[:2] == rows.mask.shape and rows.action is None


@pytest.mark.parametrize("name", ["v4:2x2x1", "v5e:2x2", "v5p:2x2x1", "v6e:2x2", "tpu7x:2x2x1"])
def test_devices_say_their_kind(name):
    assert topology.attached(target(name).devices).kind is topology.read(name)[0]
    with pytest.raises(ValueError, match="peak rates of 'cpu' are not known"):
        topology.attached()


# A process of its own: the compiler reads its flags once, and prints what it lacks.
_ON_GPUS = """if True:
    import json
    from rljax.aot import compiling, report, topology
    from tests.aot import test_aot_compiled as cases
    target = topology.describe("h200:2x4")
    assert topology.attached(target.devices).kind is target.kind
    config = cases.small()
    config.mesh.update({"data": 2, "fsdp": 4})
    config.sampler.layout = "resident"
    step = compiling.make(config, target, (16, 32)).steps[-1]
    programs = [compiling.compile_one(step, name, target) for name in ("rollout", "update")]
    print(json.dumps([report.describe(step, program, target) for program in programs]))
"""


@pytest.mark.full
def test_two_nodes_of_gpus_are_compiled_for_without_one():
    try:
        topology._check_plugin(jax.__version__)
    except RuntimeError as error:
        pytest.skip(str(error))
    done = subprocess.run([sys.executable, "-c", _ON_GPUS], cwd=ROOT, capture_output=True, text=True)
    rollout, update = json.loads(done.stdout.splitlines()[-1])
    policy = 512 * 128 + 2 * (128 * 8 * 32 + 128 * 128 + 3 * 128 * 256)  # matrices, by hand; one table
    gathered = [c for c in rollout["collectives"] if c["kind"] == "all-gather"]
    # rollouts gather each matrix once, in bfloat16, within a node
    assert [(c["axes"], c["network"]) for c in gathered] == [(["fsdp"], "ici")]
    assert gathered[0]["sent"] == pytest.approx(2 * policy * 3 / 4, rel=0.02)
    assert {c["network"] for c in update["collectives"] if "data" in c["axes"]} == {"dcn"}
    assert rollout["hbm"] == topology.KINDS["h200"].hbm and rollout["unread"] == update["unread"] == 0


def test_a_gpu_is_described_for_the_compiler():
    text = topology._device(topology.KINDS["h100"])
    assert text.count("{") == text.count("}") == 4 and 'device_description_str: "NVIDIA H100 80GB HBM3"' in text
    for kind in ("a100", "h100", "h200", "b200"):
        text, known = topology._device(topology.KINDS[kind]), topology.KINDS[kind]
        numbers = dict(re.findall(r"(\w+): ([\d.]+)", text))
        assert int(numbers["device_memory_size"]) == known.hbm
        assert float(numbers["memory_bandwidth"]) == pytest.approx(known.bandwidth, rel=1e-3)
    assert topology.read("h100:16x8") == (topology.KINDS["h100"], (16, 8))


@pytest.mark.parametrize(
    ("name", "slices", "message"),
    [
        ("h300:8", 1, "no TPU or GPU 'h300'. Did you mean 'h200'"),
        ("h200:2x2x2", 1, "h200 has the form h200:NODESxGPUS, such as h200:8"),
        ("h200:0", 1, "has the form"),
        ("h200:8", 2, "write the nodes of GPUs in the target, such as h200:2x8"),
    ],
)
def test_targets_that_are_none_are_refused(name, slices, message):
    with pytest.raises(ValueError, match=message):
        topology.describe(name, slices)


def test_a_gpu_compiler_that_does_not_fit_is_refused_with_what_to_install():
    with pytest.raises(RuntimeError, match=r"pip install .*0\.0\.1"):
        topology._check_plugin("0.0.1")  # of no version, or of another one than jax


@pytest.mark.full
@pytest.mark.parametrize("name", ["rollout", "update"])
def test_decoding_and_training_compile_for_a_tpu_and_fit(name):
    record = report.describe(step(), compiling.compile_one(step(), name, target()), target())
    assert record["peak"] < record["hbm"] == 2**34 and record["compile_s"] < 180 and record["devices"] == 16
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
    held = record["by_cause"]
    # a TPU program has 4 MiB or so of scratch
    assert sum(held.values()) == record["peak"] and 0 <= held["not in the account"] < 2**23
    arguments = ("parameters", "moments of the optimizer", "rows and other arguments")
    assert sum(held.get(cause, 0) for cause in arguments) == pytest.approx(record["arguments"], rel=0.01)
    if name == "update":
        assert held["moments of the optimizer"] == pytest.approx(2 * held["parameters"], rel=1e-2)
    text = report.table(record)
    assert f"{name}:" in text and "roofline" in text and "at the peak" in text and "fsdp" in text


def test_a_program_that_does_not_fit_is_refused_with_its_largest_arrays():
    step = compiling.make(small(vocabulary=2**28), target(), (16, 32)).steps[-1]
    with pytest.raises(compiling.DoesNotFitError) as refused:
        compiling.compile_one(step, "update", target())
    # three float32 copies of a table of 128 x 2^28 numbers, on 16 chips
    assert f"arguments alone are {3 * 4 * 128 * 2**28 / 16 / 2**30:.1f} GiB, and a chip has 16 GiB" in str(
        refused.value
    )
    assert "8.00 GiB  params.policy.embedding" in str(refused.value)
    message = "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory (47.28G) exceeds available HBM (15.75G)."
    text = compiling._too_large(step, "update", target(), compiling.trace(step, "update"), message)
    assert text.startswith("update does not fit v5e:4x4: it needs 47.28G, and a chip has 15.75G")
    assert "rljax/models/" in text  # the source line of an intermediate array


def test_errors_name_the_nearest_valid_name():
    with pytest.raises(ValueError, match=r"no TPU or GPU 'v5pp'. Did you mean 'v5p'"):
        topology.describe("v5pp:4x4x4")
    with pytest.raises(ValueError, match="v5e has the form v5e:NxN, such as v5e:4x4"):
        topology.describe("v5e:4x4x4")
    with pytest.raises(ValueError, match="Did you mean 'rollout'"):
        compiling.trace(step(), "rolout")
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


@pytest.mark.full
def test_the_command_names_an_unknown_topology():
    def run(*arguments):
        command = [sys.executable, "tpu/compile.py", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    done = run("--config", "quickstart", "--topology", "v7:4x4")
    assert done.returncode == 2 and "error: target 'v7:4x4'" in done.stderr and "Traceback" not in done.stderr


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
        compiling.make(files.load("gsm8k"), target())
    config = files.load("quickstart", "quick")
    config.phase[config.phases[-1]].task = "jsonl('/nowhere/rows.jsonl', reward='boxed', completion_length=16)"
    assert compiling.make(config, target(), (8, 8)).setups[0].task.prompt_length == 8


def test_which_braces_end_a_computation():
    kernel = '%k = f32[3,8] custom-call(%x), frontend_attributes={kernel_metadata={\n"block":"{128}"\n}}, a={}\n  %y ='
    add = "ROOT %add.9 = f32[] add(%a, %b)\n}"
    module = edited(("%y =", kernel), (add, f'{add}, execution_thread="sparsecore"'))
    assert list(module.computations) == ["sum", "less", "condition", "body", "main"]
    assert list(module.computations["body"].instructions)[-4:] == ["k", "y", "z", "out"]
    assert hlo.unread(module) == []


# --- the page -------------------------------------------------------------------------


@pytest.mark.parametrize("row", page.ROWS, ids=lambda row: row.name)
def test_rows_of_the_page_use_all_chips(row):
    _, shape = topology.read(row.topology)
    config = files.load("pretrained", row.model)
    for field, value in row.fields.items():
        files.override(config, field, value)
    mesh = {axis: size for axis, size in config.mesh.items() if axis != "rollout"}
    assert math.prod(mesh.values()) == math.prod(shape) * row.slices
    # every chip has complete prompts in every micro-batch
    rows = math.prod(size for axis, size in mesh.items() if axis not in ("tensor", "sequence"))
    assert row.prompts % (config.learner.microbatches * rows) == 0


def test_the_page_is_generated_from_its_records():
    records = json.loads((ROOT / "tpu" / "topologies.json").read_text())
    assert (ROOT / "tpu" / "TOPOLOGIES.md").read_text() == page.page(records)
    gpus = json.loads((ROOT / "tpu" / "gpus.json").read_text())
    assert (ROOT / "tpu" / "GPUS.md").read_text() == page.gpu_page(gpus)
    for size, chips in scaling.SIZES.items():
        assert math.prod(topology.read(size)[1]) == chips
