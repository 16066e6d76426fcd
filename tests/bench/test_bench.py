"""The benchmarks run and compare what their pages say; timings are not tested."""

import functools
import json
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import algorithms, bench, models
from rljax.algorithms import interpreter, seams
from rljax.bench import algebra, device, gap, parts, peers, shapes, sleepers, verifier, worlds
from rljax.config import files, schema
from tests.support import tiny


@pytest.mark.full
def test_the_extremes_have_equal_needs_and_differ_only_in_their_chains():
    short, long = (seams.algorithm(call, "test") for call in algebra.extremes(tiny.config()))
    assert interpreter.needs(short) == interpreter.needs(long)
    assert algebra.pieces(short) + 3 < algebra.pieces(long)
    assert short.source.spec == long.source.spec == "task()"
    assert algebra.pieces(algorithms.reinforce()) == 4  # source, returns, reinforce, a reduction


def test_functions_are_timed_interleaved():
    order = []
    times = bench.interleaved({name: lambda n=name: order.append(n) for name in "ab"}, 3)
    assert order == ["b", "a", "a", "b", "b", "a"] and [len(t) for t in times.values()] == [3, 3]


@pytest.mark.full
def test_the_algebra_bench_reports_both_chains():
    record = algebra.algebra(tiny.config(), 2, ("grpo(kl=0.0)", "dr_grpo()"), jax.devices()[:1])
    assert [c["pieces"] for c in record["chains"]] == [6, 5]
    assert all(c["best_ms"] > 0 for c in record["chains"]) and record["ratio"] > 0
    assert algebra.table(record).count("pieces") == 2


@pytest.mark.full
def test_the_bench_of_critics_reports_its_forms():
    record = algebra.critic(tiny.config(), 1, jax.devices()[:1], ["on the policy's trunk"])
    (form,) = record["forms"]
    assert form["ratio"] == 1 and form["best_ms"] > 0 and algebra.table_forms(record).count("\n") == 1


@pytest.mark.full
def test_the_bench_of_pictures_counts_what_the_tower_adds():
    seeing, twin = (files.load("pictures", name) for name in ("quick", "charts_twin"))
    twin.update({"model": {**seeing.model, "vision": twin.model.vision}, "batch": seeing.batch})
    record = algebra.pictures(seeing, twin, 1, jax.devices()[:1])
    text, trained, frozen = (form["operations"] for form in record["forms"])
    assert text == 1 < frozen < trained and algebra.table_forms(record).count("\n") == 3


@pytest.mark.full
def test_the_gap_is_larger_where_the_sampler_rounds_more():
    shapes.SHAPES["narrow"] = ({"layers": 1, "width": 32, "heads": 2, "kv_heads": 1, "hidden": 32}, 64)
    chosen = ("bfloat16: order of sums", "and norms, biases rounded to sample")
    means = [np.abs(gap.measure(gap.CAUSES[name], "narrow", 4, 4, 5, 16)).mean() for name in chosen]
    assert 10 * means[0] < means[1] < 0.1
    records = [{"cause": name, "mean": mean, "max": mean} for name, mean in zip(chosen, means, strict=True)]
    assert chosen[1] in gap.table({"shape": "narrow", "tokens": 256, "causes": records})


def _step(lengths: str):
    """Return a small step, with either kind of lengths."""
    config = schema.default()
    config.algorithm, config.batch.prompts, config.batch.samples = "grpo(kl=0.0)", 8, 4
    config.log.rollout_rows = 0
    shapes.SHAPES["test"] = ({"layers": 2, "width": 16, "heads": 2, "kv_heads": 1, "hidden": 32}, 64)
    shapes.set_model(config, "test")
    return shapes.work(config, "test", 5, 16, lengths, jax.devices()[:1])


@functools.cache
def _work():
    """Return that step, compiled, with completions of full length."""
    return parts.compile_step(_step("fixed"))[0]


@pytest.mark.full
def test_the_split_names_every_part_and_counts_real_tokens():
    work = _work()
    split = {part["part"]: part for part in parts.split(work, 2)}
    assert list(split) == ["prefill", "decode", "score", "log-probs", "gradient", "optimizer"]
    assert split["gradient"]["flops"] == 3 * split["log-probs"]["flops"]
    assert work.metrics["slot_utilisation"] == 1


@pytest.mark.full
def test_flops_are_those_the_compiler_counts_of_a_plain_forward_pass():
    setup = _work().step.setup
    model, rows, width = models.build(setup.networks["policy"].architecture), 32, 21  # on one device
    token = jnp.zeros((rows, width), jnp.int32)
    forward = jax.jit(lambda params: model.logits(params, model.apply(params, token, token == 0)))
    shapes_ = jax.eval_shape(model.init, jax.random.key(0))
    counted = forward.lower(shapes_).cost_analysis()["flops"]
    # prompts of length 0, so that all positions are completion tokens; a plain softmax also computes masked scores
    count = parts.flops(setup, 0, rows * width, rows, width)
    np.testing.assert_allclose(count, counted, rtol=0.25)
    assert count < counted  # model FLOPs leave out norms, rotations and softmaxes


@pytest.mark.full
def test_a_long_tail_has_a_quarter_of_the_length():
    step = _step("longtail")
    keys = [jax.random.key(seed, impl="threefry2x32") for seed in range(5)]
    state = step.begin(None, keys[0])
    written, slots = np.zeros((2, 5, 32))
    for number, key in enumerate(keys):
        rows = step.rollout(state, key)
        written[number], slots[number] = rows.mask.sum(axis=1), rows.extra["slots"]
    assert 2.5 < written.mean() < 5.5  # 4 of 16; 160 rows
    assert written.sum() / slots.sum() < 0.6


@pytest.mark.full
def test_peers_receive_the_shapes_and_return_json(tmp_path):
    script = tmp_path / "peer.py"
    script.write_text("import json, sys; print(json.dumps({'step_s_median': 2.0, 'peer': ' '.join(sys.argv[1:])}))")
    setup = _work().step.setup
    (record,) = peers.compare(lambda: None, setup, [str(script)], [sys.executable], 1, 1)
    assert "--prompts 8 --group 4 --prompt-len 6 --new-tokens 16 --layers 2 --dim 16" in record["peer"]
    assert 0 < record["ratio"] < 0.1  # an empty function against 2 seconds
    with pytest.raises(ValueError, match="no such file"):
        peers.check([str(tmp_path / "none.py")], [sys.executable])
    with pytest.raises(ValueError, match="must be one for each"):
        peers.check([str(script)], [])
    script.write_text("raise SystemExit('a failure')")
    with pytest.raises(RuntimeError, match="a failure"):
        peers.run(sys.executable, str(script), [])


def test_ceilings_are_rates():
    assert parts.bandwidth(repeats=1, mib=1) > 0


@pytest.mark.full
def test_the_bench_of_worlds_plays_the_same_tokens_in_both_forms():
    record = worlds.worlds(tiny.config(batch__prompts=2, batch__samples=2), "tiny", 12, 1, workers=0)
    assert (record["rows"], record["equal"], record["turn_length"]) == (4, 1.0, 3)
    assert all(0 <= form["idle"] < 1 and form["step_s"] > 0 for form in record["forms"].values())
    assert worlds.table({"device": "cpu", **record}).count("\n") == 3


@pytest.mark.full
def test_the_bench_of_a_host_verifier_runs():
    cases = [(2, 1), (1, 2)]
    record = verifier.verifier(tiny.config(batch__samples=2), "tiny", 4, 1, cases, jax.devices()[:1])
    assert [(case["workers"], case["chunks"]) for case in record["cases"]] == cases and record["rows"] == 16
    for case in record["cases"]:
        assert case["host_s"] == 16 * sleepers.SECONDS / case["workers"] < case["step_s"]
    assert min(record["calls"]["seconds"].values()) > 0
    assert verifier.table({"device": "cpu", **record}).count("\n") == 10


@pytest.mark.full
def test_the_bench_of_rollouts_ahead_runs():
    record = verifier.ahead(tiny.config(batch__samples=2), "tiny", 4, 4, 1, 1, 2)
    cases = record["cases"]
    assert {*cases["device"]["step_s"]} == {"in turn", "ahead", "in parts", "one mesh"}
    assert record["scoring_s"] == 16 * sleepers.SECONDS / 2 < cases["verifier"]["rows_s"]
    assert verifier.table_ahead({"device": "cpu", **record}).count("\n") == 9


@pytest.mark.full
def test_the_first_measurements_of_a_device_go_on_where_they_stopped(tmp_path, monkeypatch):
    asked = ["--out", str(tmp_path), "--quick"]
    run = functools.partial(
        subprocess.run, cwd=device.__file__.split("/rljax/bench")[0], capture_output=True, text=True
    )
    monkeypatch.setenv("XLA_FLAGS", "")  # one device
    command = [sys.executable, "-m", "rljax", "bench", "device", *asked]
    done = run([*command, "--parts", "unroll"])
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "README.md").read_text()
    assert page.startswith("# Measured on cpu\n") and "sampler.unroll = False" in page
    assert page.rstrip().endswith("Not measured: quickstart, tiny, half_b, eight_b, attention, members, ahead, tune.")
    first = (tmp_path / "unroll.json").read_bytes()
    again = run([*command, "--minutes", "0"])  # no time for another part
    assert again.returncode == 0 and again.stdout.strip() == page.strip()
    assert (tmp_path / "unroll.json").read_bytes() == first
    assert "no part 'unrol'. Did you mean 'unroll'" in run([*command, "--parts", "unrol"]).stderr


@pytest.mark.full
def test_what_is_predicted_of_a_step_stands_beside_what_is_measured(tmp_path):
    at_once = {"networks": {"ici": "NVLink"}, "bound": "ici", "peak": 2**30, "overlapped_s": 0.005, "serial_s": 0.0061}
    unknown = device._predicted("tiny", tmp_path, time.monotonic() + 300, True)  # of this machine
    for name, said in (("tiny", unknown), ("half_b", at_once)):
        content = {"command": "", "seconds": 1, "text": "", "record": {"device": "x", "peak_gib": 1.5, "step_ms": 7.3}}
        (tmp_path / f"{name}.json").write_text(json.dumps(content | {"predicted": said}))
    page = device.page(tmp_path)
    assert "| tiny | - | 1.50 | - | 7.3 | target 'attached': the peak rates of 'cpu' are not known. |" in page
    assert "| half_b | 1.00 | 1.50 | 5.0 to 6.1 | 7.3 | NVLink |" in page
