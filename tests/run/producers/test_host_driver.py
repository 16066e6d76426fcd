"""Host worlds in the training loop: rounds of turns, answers in the journal, rows that do not count."""

import collections
import dataclasses
import functools
import json
import os
import pathlib
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import environments, types
from rljax.config import resolve
from rljax.data import tokenizers
from rljax.environments.config import VerifierConfig
from rljax.environments.workers import pool
from rljax.environments.worlds.host import episodes
from rljax.environments.worlds.shipped.guess import Secret
from rljax.run import loop, producers, programs
from rljax.run.producers import answered, verified
from rljax.run.records import journals, metrics
from rljax.training import rows as rows_lib
from rljax.training.producers import play
from tests.data import test_public_tokenizer as public
from tests.environments.worlds.host import test_host_tokens
from tests.support import talking, tiny

ROOT = pathlib.Path(__file__).parents[3]
TURNS, PROMPTS, SAMPLES = 4, 4, 2
ROWS = PROMPTS * SAMPLES
INDEX = np.arange(PROMPTS, dtype=np.int32)
DRAWN = rows_lib.Drawn(INDEX + 100, INDEX, np.zeros_like(INDEX))
SIZES = {"batch__prompts": PROMPTS, "batch__samples": SAMPLES}
WORLD = (
    "world('tests.support.talking:Guess', {{'secrets': {}, 'turns': {}}}, max_turns={}, turn_length=4, reply_length=1, "
)
WORLD += "prompt_length=5, examples={})"


@functools.cache
def both(seed=1):
    """Return the programs of one world in the graph and on the host, and parameters that write its characters."""
    graph = tiny.program(task=f"guess(numbers=10, turns={TURNS})", **SIZES, seed=seed)
    secrets = jax.vmap(lambda i: Secret(10, TURNS).draw(i, "train"))(jnp.arange(2 * PROMPTS)).tolist()
    task = WORLD.format(secrets, TURNS, TURNS, 2 * PROMPTS)
    config = tiny.config(mesh__data=1, task=task, verifier__workers=0, **SIZES, seed=seed)
    host = programs.build(config, graph.tokenizer, jax.devices()[:1])
    params = graph.steps[0].begin(None, graph.key, None).params["policy"]
    plain = {i for c in "0123456789?+-" for i in graph.tokenizer.encode(c)} | {graph.tokenizer.eos}
    first = [4.0 if i in plain else -4.0 for i in range(params["embedding"].shape[0])]  # the embedding is tied
    return graph, host, {**params, "embedding": params["embedding"].at[:, 0].set(jnp.array(first))}


@pytest.fixture
def world():
    """Return a function that plays a batch in this process, or in workers."""

    def run(journal=None, step=0, workers=0, timeout=5.0, host=None, concurrency=1, seed=1):
        host, params = host or both(seed)[1], both(seed)[2]
        setup = host.setups[0]
        limits = {"workers": workers, "timeout": timeout, "concurrency": concurrency}
        settings = tiny.changed(setup, verifier=limits)
        journal = journal or journals.Journal()
        batch = DRAWN, "train", host.key, SAMPLES, setup.settings.sampler
        with producers.workers(settings) as opened:
            producer = answered.Answered(host, host.steps[0], opened, journal)
            return jax.device_get(producer.played({"policy": params}, *batch, step, "a test"))

    return run


def same(one, two):
    assert jax.tree.structure(one) == jax.tree.structure(two)
    jax.tree.map(np.testing.assert_array_equal, one, two)


@functools.cache
def inside(slots=0, seed=1):
    """Return the rows of the world in the graph."""
    graph, _, params = both(seed)
    sampler = dataclasses.replace(graph.setups[0].settings.sampler, slots=slots)

    def run(params):
        batch = {"policy": params}, ("policy",), jnp.int32(0), DRAWN, "train", graph.key
        return play.seated(graph.setups[0], *batch, sampler=sampler)[0]

    return jax.device_get(jax.jit(run)(params))


def equal(one, two):
    """Assert that rows of two shapes are equal, their numbers to rounding."""
    close = ("behaviour_logp", "raw_logp", "entropy", "square_prob")
    for name in close:
        np.testing.assert_allclose(getattr(one, name), getattr(two, name), atol=1e-5, err_msg=name)
    same(*(rows.replace(extra={}, **dict.fromkeys(close)) for rows in (one, two)))


@pytest.mark.full
def test_the_graph_and_the_host_form_of_a_world_agree_token_for_token(world):
    graph, host, _ = both(seed=10)  # a seed with which a row guesses the number
    outside = world(seed=10)
    assert host.tasks[0].completion_length == graph.tasks[0].completion_length
    equal(inside(seed=10), outside)
    place = np.arange(outside.mask.shape[1])[None, :] < outside.action.length[:, None]
    replies = {*outside.action.token[place & (outside.mask == 0)].tolist()}
    assert len(replies) == 3 and (outside.turn.max(axis=1) == TURNS - 1).any()  # all answers, and whole conversations
    assert {*outside.outcome} >= {types.Outcome.CORRECT} and outside.token_reward.sum() > 0


@pytest.mark.full
def test_rows_that_take_turns_in_fewer_slots_are_the_same(world, monkeypatch):
    _, host, _ = both()
    config = host.config.copy_and_resolve_references()
    config.unlock()
    config.sampler.slots = 3
    fewer = programs.build(config, host.tokenizer, jax.devices()[:1])
    monkeypatch.setenv("MOOD", "2=slow")
    whole, rows = world(workers=2), world(host=fewer, workers=2)
    equal(whole, rows)
    same(rows, world(host=fewer))


@pytest.mark.full
def test_slots_of_the_graph_take_the_next_episode():
    whole, fewer = inside(), inside(slots=3)
    equal(whole, fewer)
    lengths = whole.action.length
    assert len({*lengths.tolist()}) > 1
    in_waves = 3 * sum(lengths[i : i + 3].max() for i in range(0, ROWS, 3))
    assert lengths.sum() <= fewer.extra["slots"].sum() < in_waves  # no slot waits for the others


def recorded(path):
    return metrics.StepLog(path).read()


def test_a_journal_cut_anywhere_gives_the_same_rows(world, tmp_path, monkeypatch):
    monkeypatch.setenv("MOOD", "1=broken")
    path = tmp_path / "turns.jsonl"

    def attempt():
        talking.Guess.calls = 0
        rows = world(journals.Journal(tmp_path, 2, "judge"), step=2)
        return rows, talking.Guess.calls

    with pytest.warns(verified.VerifierWarning, match=r"(?s)world crashed on \d of 8 rows.*guess is broken"):
        whole, calls = attempt()
    lines = path.read_bytes().splitlines(keepends=True)
    turns = [r for r in recorded(path) if r["turn"] >= 0]
    assert calls == len(turns) > ROWS and {r["step"] for r in turns} == {3} and len(lines) == calls + ROWS
    broken = max(n for n, line in enumerate(lines) if b"guess is broken" in line)
    for kept in range(0, len(lines) + 1, 3):
        path.write_bytes(b"".join(lines[:kept]) + b'{"step": 3, "row"')  # the kill cut a line
        monkeypatch.setenv("MOOD", "1=broken" if kept <= broken else "")  # what happened is not found anew
        with pytest.warns(verified.VerifierWarning):
            again, calls = attempt()
        same(whole, again)
        assert sorted(map(str, recorded(path))) == sorted(map(str, (json.loads(line) for line in lines)))
        known = collections.Counter(r["row"] for r in map(json.loads, lines[:kept]) if r["turn"] >= 0)
        total = collections.Counter(r["row"] for r in turns)
        assert calls == sum(n for row, n in total.items() if known[row] < n)  # half-played ones are built again
    path.write_bytes(b"".join(lines))
    with pytest.warns(verified.VerifierWarning):
        again, calls = attempt()
    same(whole, again)
    assert calls == 0


def test_a_journal_of_other_texts_or_another_judge_is_not_read(world, tmp_path):
    path = tmp_path / "turns.jsonl"
    first = world(journals.Journal(tmp_path, 0, "judge"))
    text = path.read_text()
    path.write_text(text.replace('"turn": 0, "text": "', '"turn": 0, "text": "0'))
    talking.Guess.calls = 0
    same(first, world(journals.Journal(tmp_path, 0, "judge")))
    assert talking.Guess.calls >= ROWS  # turn 0 of every row
    talking.Guess.calls = 0
    same(first, world(journals.Journal(tmp_path, 0, "another")))
    assert talking.Guess.calls == text.count('"turn"') - ROWS
    talking.Guess.calls = 0
    world(journals.Journal(tmp_path, 1, "judge"))  # a checkpoint of step 1 has these
    assert talking.Guess.calls == text.count('"turn"') - ROWS


@pytest.mark.full
def test_a_slow_row_holds_up_no_other(world, tmp_path, monkeypatch):
    quick = world()
    monkeypatch.setenv("MOOD", "2=slow")
    same(quick, world(journals.Journal(tmp_path), workers=4))
    order = [(r["row"] // SAMPLES == 2, r["turn"]) for r in recorded(tmp_path / "turns.jsonl") if r["turn"] >= 0]
    assert [slow for slow, _ in order] == sorted(slow for slow, _ in order)  # others are over before it goes on


def test_episodes_that_a_worker_plays_at_once_give_the_same_rows_and_journal(world, tmp_path):
    one, many = tmp_path / "one", tmp_path / "many"
    rows = world(journals.Journal(one))
    same(rows, world(journals.Journal(many), workers=2, concurrency=4))
    assert sorted(map(str, recorded(one / "turns.jsonl"))) == sorted(map(str, recorded(many / "turns.jsonl")))
    before = (many / "turns.jsonl").read_bytes()
    same(rows, world(journals.Journal(many), workers=1, concurrency=4))  # from the journal
    assert (many / "turns.jsonl").read_bytes() == before


def test_rows_whose_world_fails_do_not_count(world, monkeypatch):
    healthy = world()
    monkeypatch.setenv("MOOD", "0=hang 1=broken 2=long")
    with pytest.warns(verified.VerifierWarning, match=r"(?s)world crashed on [34] of 8 rows of a test. First"):
        rows = world(workers=2, timeout=0.5)
    names = [types.Outcome(int(o)) for o in rows.outcome]
    assert names[:2] == [types.Outcome.TIMED_OUT] * 2 and types.Outcome.CRASHED in names[2:4]
    for row in range(ROWS):
        failed = names[row] in (types.Outcome.TIMED_OUT, types.Outcome.CRASHED)
        assert rows.valid[row] == (not failed)
        if failed:
            assert rows.token_reward[row].sum() == 0 and rows.finish[row] == types.Finish.LENGTH
        elif row >= 6:
            same(jax.tree.map(lambda x, row=row: x[row], healthy), jax.tree.map(lambda x, row=row: x[row], rows))
    assert (rows.valid[4:6] == (rows.turn[4:6].max(axis=1) == 0) * (rows.outcome[4:6] == 1)).all()
    monkeypatch.setenv("MOOD", "3=deaf")
    with pytest.warns(verified.VerifierWarning, match=r"(?s)crashed on 2 of 8.*deaf"):
        rows = world()
    assert rows.mask[6:].sum() == 0 and (rows.action.length[6:] == 0).all() and not rows.valid[6:].any()
    same(jax.tree.map(lambda x: x[:6], healthy), jax.tree.map(lambda x: x[:6], rows))
    monkeypatch.setenv("MOOD", " ".join(f"{i}=deaf" for i in INDEX))
    with pytest.raises(pool.VerifierError, match="the world crashed on 8 of 8 rows of a test"):
        world()


@pytest.mark.full
def test_rows_carried_over_steps_are_the_rows_sampled_whole(tmp_path):
    _, host, params = both()
    config = host.config.copy_and_resolve_references()
    config.unlock()
    config.seam.source = "partial(segment=5, oversample=1)"
    config.phase.main.optimizer = "sgd(learning_rate=0.0)"
    flying = programs.build(config, host.tokenizer, jax.devices()[:1])
    step, batch = flying.steps[0], (SAMPLES, host.setups[0].settings.sampler)
    state = step.begin(None, flying.key, {"policy": jax.tree.map(jnp.copy, params)})
    ended, carried = [], []
    with producers.workers(flying.setups[0]) as opened:
        for _ in range(8):
            opened.flying.clear()  # as in a run that is resumed before each step
            produce = producers.make(flying, step, opened, journals.Journal(tmp_path, 0, "judge"))
            rows = jax.device_get(produce(state))
            carried.append((rows.finish == types.Finish.UNFINISHED).mean())
            ended += [jax.tree.map(lambda x, i=i: x[i], rows) for i in np.flatnonzero(rows.finish != 2)]
            state, _ = step.update(state, jax.device_put(rows), flying.key)
        assert 0 < max(carried) and len({int(row.version[0]) for row in ended}) > 1
        for started, index in {(int(row.version[0]), int(row.index)) for row in ended}:
            drawn = rows_lib.Drawn(*(np.array([x], np.int32) for x in (0, index, 0)))
            producer = answered.Answered(host, host.steps[0], opened, journals.Journal())
            whole = producer.played({"policy": params}, drawn, "train", host.key, *batch, started, "")
            whole = jax.device_get(whole)
            for row in (row for row in ended if (int(row.version[0]), int(row.index)) == (started, index)):
                k = next(k for k in range(SAMPLES) if np.array_equal(whole.action.token[k], row.action.token))
                np.testing.assert_array_equal(whole.token_reward[k], row.token_reward)
                np.testing.assert_allclose(whole.behaviour_logp[k], row.behaviour_logp, atol=1e-5)
                assert (whole.outcome[k], whole.finish[k], row.valid) == (row.outcome, row.finish, 1)
                assert row.version.max() > started or row.action.length <= 5 + 1


# --- in the training loop -------------------------------------------------------------------------


def training(**fields):
    """Return the config of 2 + 2 steps: of demonstrations, and of episodes."""
    task = WORLD.format([7, 1, 4, 4, 9, 0, 3, 5], TURNS, TURNS, 2 * PROMPTS)
    c = tiny.phases(task=task, **{"verifier__workers": 0, "mesh__data": 1, **SIZES, **fields})
    c.phase.warm.batch = {"prompts": PROMPTS}
    c.phase.warm.evaluate = c.phase.main.evaluate = ""
    return c


FLYING = {"seam__source": "partial(segment=5, oversample=1)", "phase__main__steps": 4}


def killed(config, folder, call):
    """Train in a process that is killed at a call of the world; ``config`` is an expression with its module's name."""
    module = config.partition("(")[0].rpartition(".")[0]
    script = f"import jax, {module}\nfrom rljax.run import loop\n"
    script += f"loop.train({config}, {str(folder)!r}, progress=False, devices=jax.devices()[:1])"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "KILLED_AT": str(call)}
    ended = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


@pytest.mark.full
def test_a_run_that_is_killed_within_a_step_ends_as_if_nothing_had_been(tmp_path):
    def train(folder):
        talking.Guess.calls = 0
        return loop.train(training(), folder, progress=False, devices=jax.devices()[:1])

    whole = train(tmp_path / "whole")
    lines = recorded(tmp_path / "whole" / "turns.jsonl")
    count = sum(r["turn"] >= 0 for r in lines)
    killed(f"{__name__}.training()", tmp_path / "run", talking.Guess.calls - 5)
    left = recorded(tmp_path / "run" / "turns.jsonl")
    lost = len(lines) - len(left)  # without workers, the answers of a round are stored together
    assert max(r["step"] for r in left) == 4 and left == lines[: len(left)] and 0 < lost <= 5 + ROWS
    again = train(tmp_path / "run")
    assert talking.Guess.calls <= TURNS * lost < count  # those of episodes that were half played
    jax.tree.map(np.testing.assert_array_equal, whole.state, again.state)
    for name in ("metrics", "rollouts"):
        assert (tmp_path / "whole" / f"{name}.jsonl").read_bytes() == (tmp_path / "run" / f"{name}.jsonl").read_bytes()
    assert [h["step"] for h in again.history] == [1, 2, 3, 4]


@pytest.mark.full
def test_a_run_with_rows_in_flight_is_resumed_bit_for_bit(tmp_path):
    def train(folder):
        return loop.train(training(**FLYING), folder, progress=False, devices=jax.devices()[:1])

    talking.Guess.calls = 0
    whole, calls = train(tmp_path / "whole"), talking.Guess.calls
    assert any(h["carried"] > 0 for h in whole.history if "carried" in h)
    for back in (2, 9):
        killed(f"{__name__}.training(**{__name__}.FLYING)", tmp_path / f"run{back}", calls - back)
        again = train(tmp_path / f"run{back}")
        jax.tree.map(np.testing.assert_array_equal, whole.state, again.state)
        one, two = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("whole", f"run{back}"))
        assert one == two


def small(task, tokenizer=None, **fields):
    """Return the config of two steps in a world whose turns are bytes, of which an untrained policy makes little."""
    c = tiny.config(task=task, **{"mesh__data": 1, "batch__prompts": 2, "batch__samples": 2, **fields})
    c.tokenizer.kind = "bytes"
    c.verifier.workers = 1
    return c


LENGTHS = "turns=2, turn_length=12, reply_length=48"


@pytest.mark.full
@pytest.mark.parametrize("name", ["python_tool", "search", "textarena"])
def test_worlds_with_tools_train(name, tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text(
        "".join(json.dumps({"question": f"Capital of Peru, {n}?", "answer": "Lima"}) + "\n" for n in range(9))
    )
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "peru.md").write_text("The capital of Peru is Lima.")
    texts = str(tmp_path / "texts")
    task = {
        "python_tool": f"python_tool(chat=False, unsafe=True, seconds=1.0, {LENGTHS})",
        "search": f"search({texts!r}, {str(path)!r}, form='tags', chat=False, heldout=0.3, {LENGTHS})",
        "textarena": f"textarena('GuessTheNumber-v0', size=9, heldout=3, chat=False, {LENGTHS})",
    }[name]
    if name != "python_tool":
        pytest.importorskip({"search": "bm25s", "textarena": "textarena"}[name])
    result = loop.train(
        small(task, verifier__timeout=20.0), tmp_path / "run", progress=False, devices=jax.devices()[:1]
    )
    assert [h["step"] for h in result.history] == [1, 2]
    assert all(h["valid_rows"] == 4 and h["skipped"] == 0 for h in result.history)
    journal = metrics.StepLog(tmp_path / "run" / "turns.jsonl").read()
    assert {r["turn"] for r in journal} >= {-1, 0}
    rows = [json.loads(line) for line in (tmp_path / "run" / "rollouts.jsonl").open()]
    if name == "textarena":  # each turn is answered
        assert {r["turn"] for r in journal} == {-1, 0, 1} and any(t["by"] == "world" for t in rows[0]["turns"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"verifier__timeout": 3.0},
            r"verifier.timeout=3.0 .*must be above 4, the seconds that a turn of 'python_tool'",
        ),
        ({"sampler__compact": 1}, r"sampler.compact=1 .*expected 0 in task 'python_tool'"),
        ({"seam__source": "april(2)"}, r"'python_tool' is scored on the host, or played there"),
        ({"world__players": ("policy", "snapshot")}, r"world.players=.*'policy' alone"),
    ],
)
def test_settings_that_do_not_fit_a_host_world(fields, message):
    with pytest.raises(ValueError, match=message):
        resolve.phases(small(f"python_tool(chat=False, unsafe=True, {LENGTHS})", **fields))


@pytest.mark.full
def test_chunks_do_not_matter_to_a_host_world():
    resolve.phases(small(f"python_tool(chat=False, unsafe=True, {LENGTHS})", verifier__chunks=3))


@pytest.mark.full
def test_turns_and_results_of_tools_are_written_by_the_chat_template(tmp_path):
    """A row with a call is what the template writes for the whole conversation, and turns end at a stop token."""
    kind = public.write(tmp_path / "files", "byte level", chat_template=test_host_tokens.TOOLS)
    tokenizer = tokenizers.load(kind)
    assert tokenizer is not None
    task = environments.lookup("python_tool")(unsafe=True, turns=3, turn_length=64, reply_length=64).bind(tokenizer)
    example = task.example(0, "train")
    turns = [f'<tool_call>\n{{"name": "python", "arguments": {json.dumps(example["plan"][0][1])}}}\n</tool_call>', "no"]
    with episodes.Episodes(task.make, VerifierConfig(workers=0)) as opened:
        begun = opened.begin({0: example})[0]
        row = task.opening(begun)
        said = list(begun.messages)
        for number, text in enumerate(turns):
            opened.submit(0, number, text)
            reply = opened.ready(0)[0, number]
            row += tokenizer.encode(text + "<|to|>") + ([] if reply.over else task.reply(reply, stopped=True))
            said += [{"role": "assistant", "content": text}, *reply.messages]
    assert reply.over and said[-2]["role"] == "tool" and said[-2]["content"] == example["reference"]
    whole = tokenizer.encode(tokenizer.chat(said, False, list(task.tools)))
    assert row == whole[: len(row)] and len(whole) - len(row) <= 1  # a line ends after the stop token
