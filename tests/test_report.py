"""Looking at one run: records of tokens, the page, its server, the terminal, and what a run records for them."""

import dataclasses
import html.parser
import importlib.util
import io
import json
import logging
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import threading
import urllib.request
import warnings

import absl.logging
import numpy as np
import pytest
import rich.console

from rljax import __main__, types
from rljax.data import raw_bytes, storage
from rljax.host import workdirs
from rljax.run import events
from rljax.run.reports import completions, curves, facts, live, records, report, runs, show_metrics, show_rollouts
from rljax.run.reports import html as pages
from tests import tiny

TEXTS = ("a\u00e9", "</script><b>&", "", "x" * 700)
HOSTILE = '<img src="http://x/y.png"><script>alert(1)</script>'


def rollout(texts=TEXTS):
    """Return rows of bytes whose numbers are random, of which the last one was not sampled."""
    ids = [[*raw_bytes.Bytes().encode(text), raw_bytes.Bytes().eos] for text in texts]
    rng, width = np.random.default_rng(0), max(map(len, ids)) + 2
    token, mask = np.zeros((len(ids), width), np.int32), np.zeros((len(ids), width), np.float32)
    for i, row in enumerate(ids):
        token[i, : len(row)], mask[i, : len(row)] = row, 1
    numbers = {name: rng.normal(size=mask.shape).astype(np.float32) for name in ("raw_logp", "ref_logp", "entropy")}
    return types.Rollout(
        mask=mask,
        reward=np.arange(len(ids), dtype=np.float32),
        group=np.arange(len(ids), dtype=np.int32) // 2,
        index=np.arange(len(ids), dtype=np.int32) // 2,
        action=types.Action(token),
        advantage=np.repeat(rng.normal(size=(len(ids), 1)), width, axis=1).astype(np.float32),
        on_policy=np.arange(len(ids)) < len(ids) - 1,
        extra={"log_ratio": rng.normal(size=mask.shape).astype(np.float32)},
        **numbers,
    )


def recorded(rows):
    program = tiny.program()
    setup, program = program.setups[0], dataclasses.replace(program, tokenizer=raw_bytes.Bytes())
    return records.rollouts(program, setup, 7, rows)


def test_the_tokens_of_a_record_are_those_of_the_rollout():
    rows = rollout()
    out = json.loads(json.dumps(recorded(rows)))
    assert [(r["step"], r["index"], r["group"]) for r in out] == [(7, i // 2, i // 2) for i in range(4)]
    for i, record in enumerate(out[:3]):
        keep, tokens = rows.mask[i] > 0, record["tokens"]
        assert "".join(tokens["text"]) == record["completion"] == TEXTS[i]
        difference = (rows.raw_logp - rows.ref_logp)[i][keep].astype(float)
        expected = {
            "advantage": rows.advantage[i][keep],
            "ratio": np.exp(rows.extra["log_ratio"][i][keep].astype(float)),
            "entropy": rows.entropy[i][keep],
            "kl": np.exp(-difference) - 1 + difference,
        }
        assert set(tokens) == {"text", *expected}
        for name, value in completions.spread(tokens).items():
            np.testing.assert_allclose(value, expected[name], rtol=5.1e-4, err_msg=name)
        assert isinstance(tokens["advantage"], float)  # equal numbers are written once
    assert out[0]["tokens"]["text"] == ["a", "", "\u00e9", ""]  # a character of two tokens, then the end


def test_a_row_that_was_not_sampled_has_its_log_probs_and_a_long_one_loses_its_middle():
    rows = rollout()
    record = recorded(rows)[3]
    assert len(record["completion"]) == 700 and set(record["tokens"]) == {"text", "advantage", "logp", "omitted"}
    half, kept = records.LIMIT // 2, rows.extra["log_ratio"][3][rows.mask[3] > 0]
    assert record["tokens"]["omitted"] == 701 - records.LIMIT
    np.testing.assert_allclose(record["tokens"]["logp"], [*kept[:half], *kept[-half:]], rtol=5.1e-4)


@pytest.mark.parametrize(("wanted", "logged"), [(0, 0), (1, 4), (4, 4), (5, 8), (1000, 32)])
def test_whole_groups_are_logged(wanted, logged):
    setup = tiny.changed(tiny.program().setups[0], log={"rollout_rows": wanted})
    assert setup.samples == 4 and setup.rows == 32 and setup.logged == logged


# --- the page -----------------------------------------------------------------------------------------


def write(place, steps=40, rows=8, length=12, every=10):
    """Write a work directory as a run of two phases would."""
    place.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    phases = {"warm": {"algorithm": "sft()", "steps": steps // 2}, "main": {"steps": steps - steps // 2}}
    config = {"name": HOSTILE, "algorithm": "grpo()", "task": "t()", "phases": ["warm", "main"], "phase": phases}
    (place / "config.json").write_text(json.dumps(config))
    (place / "code.json").write_text(json.dumps({"mine/pieces.py": "0123abcd"}))
    (place / "algorithm.txt").write_text("phase warm: steps 1 to 20, t(), 3 prompts x 1 samples\nsft()\n")
    names = (
        "reward",
        "accuracy",
        "entropy",
        "kl",
        "length",
        "loss",
        "loss/policy",
        "gradient_norm",
        *"abcdefghijklmnop",
    )
    logs = {name: [] for name in ("metrics", "timings", "rollouts", "evaluations", "events")}
    for step in range(1, steps + 1):
        phase = "warm" if step <= steps // 2 else "main"
        used = names if phase == "main" else ("loss", "gradient_norm")
        logs["metrics"].append({"step": step, "phase": phase, **{n: float(rng.normal()) for n in used}})
        logs["timings"].append({"step": step, "phase": phase, "seconds": 0.5, "wait": 0.4, "tokens_per_second": 9.0})
        if step % every == 0:
            tokens = {"text": ["ab "] * length, "advantage": 0.5, "ratio": rng.random(length).round(4).tolist()}
            tokens |= {name: rng.random(length).round(4).tolist() for name in ("entropy", "kl")}
            row = {"step": step, "index": 3, "group": 1, "prompt": HOSTILE, "completion": "ab " * length, "reward": 1.0}
            logs["rollouts"] += [{**row, "outcome": "correct", "tokens": tokens} for _ in range(rows)]
    ks = {str(k): [0.5, 0.4, 0.6] for k in (1, 2, 4)}
    logs["evaluations"] = [{"name": "result", "step": steps, "prompts": 3, "samples": 4, "pass_at_k": ks}]
    logs["events"] = [
        {"step": 0, "event": "start", "time": "t", "host": "h", "command": ["python", "-m", "rljax", "--config=a b"]},
        {"step": 3, "event": "warning", "text": HOSTILE},
        {"step": steps, "event": "end", "reason": "finished", "host_bytes": 2**31},
    ]
    for name, lines in logs.items():
        (place / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return place


class Check(html.parser.HTMLParser):
    """Holds a page to balanced elements and to nothing from elsewhere."""

    VOID = ("meta", "img", "br", "path", "use", "polyline", "rect")

    def __init__(self):
        super().__init__()
        self.open, self.seen = [], []

    def handle_starttag(self, tag, attributes):  # noqa: D102
        self.seen.append(tag)
        for name, value in attributes:
            if name in ("src", "href", "xlink:href"):
                assert value.startswith(("#", "data:")), value
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):  # noqa: D102
        self.seen.append(tag)

    def handle_endtag(self, tag):  # noqa: D102
        if tag not in self.VOID:
            assert self.open.pop() == tag, (tag, self.getpos())


def checked(page):
    check = Check()
    check.feed(page)
    check.close()
    assert check.open == [] and "@import" not in page
    return check.seen


@pytest.fixture(scope="module")
def long_run(tmp_path_factory):
    """Return (work directory, page) of a run of 500 steps with long completions."""
    place = write(tmp_path_factory.mktemp("report") / "run", steps=500, rows=16, length=512, every=50)
    return place, pathlib.Path(report.write(place)).read_text()


def test_the_page_is_whole_self_contained_and_readable_without_its_script(long_run):
    _, page = long_run
    seen = checked(page)
    assert seen.count("script") == 2 and seen.count("img") == 0  # its own script and numbers; nothing of a user
    for text in (
        "Step 500 of 500, finished",
        "sft()",
        "grpo()",
        "ab ab ab",
        "2.00 GiB",
        "50.0 (40.0, 60.0)",
        "3 x 1",
        "0123abcd",
        "=mine",
    ):
        assert text in page, text
    assert "step 500 (main): 16 completions of 1 prompt, 16 correct" in page and "step 3: &lt;img" in page


def test_the_page_shows_as_many_completions_as_fit(long_run):
    place, page = long_run
    assert len(page.encode()) < 3e6
    numbers = json.loads(re.search(r'id="tokens">(.*?)</script>', page, re.S)[1])
    rows = runs.read(place).rollouts
    steps = completions.choose(rows, completions.BUDGET)
    assert steps[-1] == 500 and len(completions.choose(rows, 10**9)) == 10 > len(steps)
    assert len(numbers) == 16 * len(steps) and numbers[0]["advantage"] == 0.5
    few = completions.section(runs.read(place), budget=2000)  # a row costs 512 tokens and 3 * 512 / 8 for its text
    assert few.count('class="card"') == 2 and "14 more completions of this prompt" in few


def begun(place):
    place.mkdir()
    (place / "config.json").write_text('{"name": "x", "phases": ["main"], "phase": {"main": {"steps": 5}}}')
    return place


def test_the_page_of_a_run_that_has_only_begun(tmp_path):
    page = report.page(runs.read(begun(tmp_path / "run")))
    checked(page)
    assert "Step 0 of 5, still running, or killed" in page
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        runs.read(tmp_path / "absent")


def test_a_report_that_cannot_be_written_is_a_warning(tmp_path):
    (begun(tmp_path / "run") / report.NAME).mkdir()  # a folder in place of the file
    with pytest.warns(report.ReportWarning, match=r"report\.html was not written"):
        report.save(workdirs.WorkDirectory(tmp_path / "run"))


def test_the_server_serves_what_the_files_say_and_ends(tmp_path):
    place = write(tmp_path / "run", steps=4)
    with live.Server(place, 0, lambda: f"{runs.read(place).steps}") as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"

        def get(path):
            with urllib.request.urlopen(address + path, timeout=10) as answer:
                return answer.read().decode()

        before = get("/version")
        assert get("/") == get("/report.html") == "4" and get("/version") == before
        with (place / "metrics.jsonl").open("a") as file:
            file.write('{"step": 5, "phase": "main", "reward": 1.0}\n')
        assert get("/version") != before and get("/") == "5"
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get("/config.json")
        server.shutdown()


@pytest.mark.full
def test_the_command_serves_until_it_is_interrupted(tmp_path):
    command = ["env", "--default-signal=INT"]  # pytest itself may run in the background and ignore Ctrl-C
    command += [sys.executable, "-m", "rljax", "report", str(write(tmp_path / "run", steps=4)), "--live", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    address = process.stdout.readline().split()[0]
    with urllib.request.urlopen(address, timeout=10) as answer:
        page = answer.read().decode()
    checked(page)
    assert "/version" in page
    process.send_signal(signal.SIGINT)
    try:
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 0 and errors == ""


def test_numbers_that_are_not_finite_and_broken_text_do_not_break_the_page(tmp_path):
    place = write(tmp_path / "run", steps=4, every=2)
    text = "</script><img src=x onerror=alert(1)>\x1b[31m\udc80"
    tokens = {"text": [text, "b"], "advantage": float("nan"), "ratio": [float("inf"), 1.0]}
    row = {"step": 4, "index": 0, "group": 9, "prompt": text, "completion": text, "reward": float("nan")}
    with (place / "rollouts.jsonl").open("a") as file:
        file.write(json.dumps({**row, "tokens": tokens}) + "\n")
    page = pathlib.Path(report.write(place)).read_text()
    assert "img" not in checked(page)
    block = re.search(r'id="tokens">(.*?)</script>', page, re.S)[1]
    numbers = json.loads(block, parse_constant=pytest.fail)[8]  # after the 8 rows of the step
    assert numbers == {"text": [text.replace("\udc80", "?"), "b"], "advantage": None, "ratio": [None, 1.0]}


def test_long_logs_are_thinned_for_curves_and_completions(tmp_path):
    place = begun(tmp_path / "run")
    rows = [{"step": s, "phase": "warm" if s <= 1001 else "main", "x": float(s % 7)} for s in range(1, 5004)]
    rows[0]["x"] = float("nan")
    (place / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = runs.read(place)
    assert len(run.metrics) == 5003 and len(run.history) == 251 + 1001  # of 4 steps each; the last ones have fewer
    assert run.history[0] == {"step": 4, "phase": "warm", "x": 3.0} and run.history[-1]["step"] == 5003
    assert [row["step"] for row in run.history[250:252]] == [1001, 1005]
    steps = [row["step"] for row in runs.log(place / "metrics.jsonl", 1000)]  # some 40 to 45 bytes each
    assert steps[:10] == [*range(1, 11)] and steps[-10:] == [*range(4994, 5004)] and len(steps) < 25


def test_the_next_commands_have_the_arguments_that_commands_take(tmp_path):
    assert not any("pairs" in line for line in facts.following(tmp_path, ["mine/pieces.py", "/data/pairs.jsonl"]))
    for line in facts.following(tmp_path / "a run", ["mine/pieces.py"]):
        python, dash_m, package, name, place, *options = shlex.split(line)
        assert (python, dash_m, package) == ("python", "-m", "rljax") and place == str(tmp_path / "a run")
        source = pathlib.Path(importlib.util.find_spec(__main__.COMMANDS[name][0]).origin).read_text()
        known = re.findall(r'DEFINE_\w+\(\s*"(\w+)"', source)
        assert {o.lstrip("-").partition("=")[0] for o in options if o.startswith("-")} <= {*known}, line


# --- the terminal -------------------------------------------------------------------------------------


def shown(source, **options):
    environment = options.pop("environment", {})
    out = io.StringIO()
    console = rich.console.Console(
        file=out, width=80, force_terminal=True, color_system="truecolor", _environ={"TERM": "xterm", **environment}
    )
    show_rollouts.show(source, console=console, **options)
    return out.getvalue()


def test_tokens_are_colored_by_the_chosen_number_unless_no_color(tmp_path):
    tokens = {"text": ["+", "-", "0\x1b"], "advantage": [1.0, -1.0, 0.0], "entropy": [0.0, 0.0, 2.0]}
    row = {"step": 1, "index": 5, "group": 0, "prompt": "p", "completion": "+-0", "reward": 1.0, "tokens": tokens}
    rows = [row, {**row, "index": 6, "group": 1, "prompt": "12 apples"}]
    text = shown(rows)
    assert re.search(r"\x1b\[30;48;2;90;160;220m\+", text) and re.search(r"\x1b\[30;48;2;230;140;60m-", text)
    assert re.search(r"\x1b\[30;48;2;230;140;60m0\\x1b", shown(rows, colour="entropy"))
    plain = shown(rows, environment={"NO_COLOR": "1"})
    assert "48;2" not in plain and "+-0" in plain
    assert "48;2" not in shown(rows, colour="kl")  # a quantity that was not logged
    broken = {**row, "tokens": {**tokens, "advantage": [1.0, float("nan"), float("inf")]}}
    assert re.search(r"\x1b\[30;48;2;90;160;220m\+", shown([broken]))
    assert "1 of 1 logged prompts" in shown(rows, prompt="5") and "apples" not in shown(rows, prompt="5")
    assert "apples" in shown(rows, prompt="apples") and "apples" not in shown(rows, count=1)
    with pytest.raises(ValueError, match="--prompt='pears': no logged prompt"):
        shown(rows, prompt="pears")


def test_the_newest_step_with_gradients_is_unfolded():
    def unfolded(advantages):
        row = {"prompt": "p", "completion": "c", "reward": 1.0}
        rows = [{**row, "step": step, "advantage": a} for step, a in enumerate(advantages, 1)]
        config = {"phases": ["warm", "main"], "phase": {"warm": {"steps": 1}, "main": {"steps": 3}}}
        text = completions.section(runs.Run("", config, rollouts=rows))
        return re.findall(r'<details open="open">\s*<summary>step (\d)', text), text.count("all advantages 0")

    assert unfolded([1.0, 0.5, -0.5, 1e-8]) == (["3"], 1)
    assert unfolded([1.0, 0.5, -0.5, 0.1]) == (["4"], 0)
    assert unfolded([1.0, 0.0, 0.0, 0.0]) == (["4"], 3)  # not a step of an earlier phase


def test_a_loss_that_is_rounding_noise_is_not_drawn():
    def titles(policy, value):
        records = [
            {"step": s, "phase": "main", "reward": 1.0, "loss/policy": policy * s, "loss/value": value} for s in (1, 2)
        ]
        return [
            [line.get_label() for line in f.axes[0].lines if line.get_label()[0] != "_"] for f in curves.losses(records)
        ]

    assert titles(3e-9, -2e-9) == [] and titles(3e-9, -0.2) == [["loss/value"]] == titles(float("nan"), -0.2)


def test_numbers_of_a_page_have_three_digits():
    page = pages.table(["", ""], [["", x] for x in (0.93392, 6.8182e-10, 1738.62, 999.6, 163.11, -2.0, 12345678, None)])
    cells = re.findall(r'<td class="number">(.*?)</td>', page)
    assert cells == ["0.934", "6.82e-10", "1,739", "1,000", "163", "-2", "12345678", ""]


def test_metrics_are_shown_by_phase_and_as_csv(tmp_path):
    write(tmp_path / "run", steps=4)
    rows = show_metrics.read(tmp_path / "run")
    assert show_metrics.chosen(rows, ["loss*", "kl"]) == ["kl", "loss", "loss/policy"]
    with pytest.raises(ValueError, match=r"no metric 'rewrd'\. Did you mean 'reward'"):
        show_metrics.chosen(rows, ["rewrd"])
    out = io.StringIO()
    show_metrics.table(rows, ["loss", "reward"], rich.console.Console(file=out, width=100))
    narrow = io.StringIO()
    show_metrics.table(rows, ["loss", "reward"], rich.console.Console(file=narrow, width=60))
    assert "smallest" in out.getvalue() and "smallest" not in narrow.getvalue() and "\u2588" not in narrow.getvalue()
    lines = [line.split() for line in narrow.getvalue().splitlines() if line.startswith(("loss", "reward"))]
    assert [len(line) for line in lines] == [4, 4, 4]  # nothing is folded
    hostile = [{"step": 1, "phase": "main", "own/[red]\x1b[31m": 1.0}]
    show_metrics.table(hostile, ["own/[red]\x1b[31m"], rich.console.Console(file=out, width=100))
    assert r"own/[red]\x1b[31m" in out.getvalue()
    assert "warm: steps 1 to 2" in out.getvalue() and f"{rows[3]['reward']:.4g}" in out.getvalue()
    assert show_metrics.spark([0.0, 1.0, 2.0, float("nan"), 7.0]) == "▁▂▃█"
    out = io.StringIO()
    show_metrics.values(rows, ["reward"], out)
    lines = out.getvalue().splitlines()
    assert lines[:2] == ["step,phase,reward", "1,warm,"] and float(lines[4].split(",")[2]) == rows[3]["reward"]


# --- what a run records -------------------------------------------------------------------------------


def test_warnings_are_recorded_once_with_the_start_and_the_end(tmp_path):
    place = workdirs.WorkDirectory(tmp_path)
    with warnings.catch_warnings(record=True), pytest.raises(RuntimeError), events.Events() as happened:
        warnings.warn("early", stacklevel=1)
        happened.open(place, 4, report=False)
        for _ in range(3):
            warnings.warn("late", stacklevel=1)
        happened.memory("checkpoint", 6)
        raise RuntimeError("gone")
    written = [json.loads(line) for line in (tmp_path / "events.jsonl").open()]
    assert [(r["step"], r["event"]) for r in written] == [
        (4, "start"), (0, "warning"), (4, "warning"), (6, "checkpoint"), (6, "end"),
    ]  # fmt: skip
    assert written[0]["packages"]["jax"] and "cpu" in written[0]["devices"][0]
    assert written[1]["text"] == "UserWarning: early" and written[4]["reason"] == "RuntimeError: gone"
    assert written[3]["host_bytes"] > 2**20


def test_hooks_are_removed_so_that_two_runs_of_a_process_are_apart(tmp_path):
    before = warnings.showwarning, [*logging.getLogger("absl").handlers]
    for name in ("one", "two"):
        place = workdirs.WorkDirectory(tmp_path / name)
        (tmp_path / name).mkdir()
        with warnings.catch_warnings(record=True), events.Events() as happened:
            happened.open(place, 0, report=False)
            absl.logging.warning("phase %s has no effect", name)
            warnings.warn(name, stacklevel=1)
        texts = [r["text"] for r in map(json.loads, (tmp_path / name / "events.jsonl").open()) if "text" in r]
        assert texts == [f"phase {name} has no effect", f"UserWarning: {name}"]
    assert (warnings.showwarning, logging.getLogger("absl").handlers) == before


def test_a_run_that_ends_as_its_store_is_down_does_not_wait_for_it_again(tmp_path):
    place = workdirs.WorkDirectory(begun(tmp_path / "run"))
    with pytest.raises(storage.Unavailable), events.Events() as happened:
        happened.open(place, 0, report=True)
        raise storage.Unavailable("503")
    assert not (tmp_path / "run" / report.NAME).exists()
    with events.Events() as happened:
        happened.open(place, 0, report=True)
    assert (tmp_path / "run" / report.NAME).exists()


def test_the_command_that_resumes_a_run_does_not_start_it_anew(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["rljax/__main__.py", "--config=x", "--fresh", "--set", "task=a(1)", "--fresh=1"])
    assert events.command() == ["python", "-m", "rljax", "--config=x", "--set", "task=a(1)"]
