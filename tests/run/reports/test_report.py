"""Looking at one run: records of tokens, the page, its server, the terminal, and what a run records for them."""

import dataclasses
import html.parser
import importlib.util
import inspect
import json
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import threading
import urllib.request

import numpy as np
import pytest

from rljax import __main__, types
from rljax.data import raw_bytes
from rljax.host import workdirs
from rljax.run.evaluation import loading
from rljax.run.reports import completions, facts, records, report, runs
from tests.run.reports.report_cases import begun, write
from tests.support import tiny

TEXTS = ("a\u00e9", "</script><b>&", "", "x" * 700)


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
    with report.Server(place, 0, lambda: f"{runs.read(place).steps}") as server:
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
        source += inspect.getsource(loading.define_flags) if "loading.define_flags()" in source else ""
        known = re.findall(r'DEFINE_\w+\(\s*"(\w+)"', source)
        assert {o.lstrip("-").partition("=")[0] for o in options if o.startswith("-")} <= {*known}, line
