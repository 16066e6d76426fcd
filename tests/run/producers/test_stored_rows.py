"""Training on rows, pairs and demonstrations of files."""

import gzip

import jax
import numpy as np
import pytest

from rljax import types
from rljax.data import rows, stored_groups
from rljax.run.reports import records
from tests.run.producers.stored_rows_cases import BYTES, PAIRS, built, reader, write
from tests.support import tiny

ROWS = [
    {
        "prompt": f"{i % 3}+1=",
        "completion": str(i),
        "reward": i / 8,
        "prompt_value": 0.25,
        "behaviour_logp": [-1.0, -0.5],
    }
    for i in range(9)
]


def test_a_pair_is_a_group_of_the_chosen_and_the_rejected_row(tmp_path):
    groups = reader("pairs").read(write(tmp_path / "p.jsonl", PAIRS))
    assert len(groups) == 9 and groups.token.shape == (9, 2, 4) and groups.behaviour_logp is None
    np.testing.assert_array_equal(groups.reward, [[1.0, 0.0]] * 9)
    assert BYTES.decode(groups.prompt[3].tolist()) == "3+0=" and groups.prompt[3, 0] == BYTES.pad
    assert groups.token[3, 0, : groups.length[3, 0]].tolist() == [*BYTES.encode("3"), BYTES.eos]
    assert groups.token[3, 1, : groups.length[3, 1]].tolist() == [*BYTES.encode("6"), BYTES.eos]
    assert groups.stopped.all() and groups.size < 1000


def test_rows_of_a_prompt_are_gathered_and_what_does_not_fill_a_group_is_counted(tmp_path):
    path = write(tmp_path / "r.jsonl", ROWS)
    with pytest.warns(stored_groups.RemainderWarning, match="3 of 9 rows do not fill a group of batch.samples=2"):
        groups = reader(samples=2, parts=("prompt_value",)).read(path)
    np.testing.assert_allclose(groups.reward * 8, [[0, 3], [1, 4], [2, 5]])
    np.testing.assert_array_equal(groups.parts["prompt_value"], np.full((3, 2), 0.25, np.float32))
    np.testing.assert_array_equal(groups.behaviour_logp, np.tile(np.float32([-1, -0.5, 0, 0]), (3, 2, 1)))
    with pytest.raises(ValueError, match=r"no prompt has batch\.samples=4 rows; the most is 3"):
        reader(samples=4).read(path)


def test_demonstrations_and_token_ids(tmp_path):
    rows = [{"prompt": "a", "token": [5, 6, 7]}, {"messages": None, "prompt": "b", "completion": "c"}]
    groups = reader("demonstrations").read(write(tmp_path / "d.jsonl", rows))
    np.testing.assert_array_equal(groups.token[0, 0], [5, 6, 7, BYTES.pad])
    assert groups.length.tolist() == [[3], [2]] and groups.stopped.tolist() == [[False], [True]]
    assert groups.reward.tolist() == [[1.0], [1.0]]


@pytest.mark.full
def test_the_rows_that_a_run_logs_are_read_token_by_token(tmp_path):
    """Some of their tokens have no text, as those of untrained policies do; rows may be cut before a stop token."""
    program = tiny.program("grpo(kl=0.0)")
    setup, tokenizer, size = program.setups[-1], program.tokenizer, program.tokenizer.vocabulary
    draw, T = np.random.default_rng(0), program.tasks[-1].completion_length
    length = draw.integers(1, T + 1, 8)
    rows = types.Rollout(
        mask=(np.arange(T) < length[:, None]) * 1.0,
        reward=np.arange(8) / 8,
        group=np.repeat([0, 1], 4),
        index=np.repeat([5, 3], 4),
        action=types.Action(token=draw.integers(0, size, (8, T))),
    )
    filler = jax.tree.map(lambda x: np.concatenate([x, 0 * x]), rows)  # as sources that ran short of groups return
    logged = records.rollouts(program, setup, 1, filler)
    shapes = {"prompt_length": program.tasks[-1].prompt_length, "completion_length": T}
    groups = stored_groups.Reader("rows", tokenizer, **shapes, samples=4).read(write(tmp_path / "r.jsonl", logged))
    np.testing.assert_array_equal(groups.length.reshape(-1), length)
    np.testing.assert_array_equal(groups.token.reshape(8, T) * rows.mask, rows.action.token * rows.mask)
    np.testing.assert_array_equal(groups.reward.reshape(-1), rows.reward)
    texts = [tokenizer.decode(p.tolist()) for p in groups.prompt]
    assert texts == [setup.task.text(i, "train") for i in (5, 3)]


@pytest.mark.full
def test_conversations_that_a_run_logs_are_those_that_it_sampled(tmp_path):
    """Who wrote which token, its turn, and what it was paid."""
    made = tiny.program("reinforce()", task="maze(side=3, turns=4, walls=0.3)", seam__source="")
    (step,) = made.steps
    rows = jax.jit(step.producer.rollout)(step.begin(None, made.key), made.key)
    rows = jax.device_get(rows)
    path = write(tmp_path / "r.jsonl", records.rollouts(made, made.setups[-1], 1, rows))
    replayed = tiny.program("awr()", task="maze(side=3, turns=4, walls=0.3)", seam__source=f"stored({path!r})")
    stored = replayed.steps[0].producer
    given = stored.of(np.arange(8), np.arange(8))
    order = [int(np.flatnonzero((given.action.token == t).all(axis=1) & (given.context.token == c).all(axis=1))[0])
             for t, c in zip(rows.action.token, rows.context.token, strict=True)]  # fmt: skip
    for name in ("mask", "turn", "token_reward", "reward", "finish"):
        expected = np.asarray(getattr(rows, name))
        got = np.asarray(getattr(given, name))[order]
        used = np.arange(expected.shape[-1]) < rows.action.length[:, None] if expected.ndim == 2 else True
        np.testing.assert_allclose(np.where(used, got, 0), np.where(used, expected, 0), err_msg=name)
    assert (rows.mask.sum(axis=1) < rows.action.length).any() and rows.turn.max() == 3


CONVERSATION = {"prompt": "a", "token": [5, 6, 7], "mask": [1, 0, 1], "turn": [0, 1, 1], "reward": 1.0}


def test_a_conversation_is_read_with_its_lists_and_a_bad_one_is_refused_by_name(tmp_path):
    read = reader(samples=1, turns=True)
    logged = {**CONVERSATION, "finish": "stop", "token_reward": [0, 0, 0.5]}
    within = {k: v for k, v in CONVERSATION.items() if k not in ("mask", "turn")}
    within["tokens"] = {"mask": 1, "turn": [0, 1, 1], "token_reward": -1}  # one number stands for equal ones
    failed = {**CONVERSATION, "valid": False}
    groups = read.read(write(tmp_path / "r.jsonl", [logged, failed, within]))
    assert groups.said["mask"][:, 0].tolist() == [[1, 0, 1, 0], [1, 1, 1, 0]]
    assert groups.said["turn"][:, 0].tolist() == [[0, 1, 1, 0]] * 2
    assert groups.said["token_reward"][:, 0].tolist() == [[0, 0, 0.5, 0], [-1, -1, -1, 0]]
    assert groups.stopped.tolist() == [[True], [False]] and groups.at([1]).said["turn"].shape == (1, 1, 4)
    for changed, message in (
        ({"token": None, "completion": "bc"}, "no value in column 'token'"),
        ({"mask": None}, "'mask' has None, expected a whole number"),
        ({"mask": [1, 0]}, "'mask' has 2 numbers for the 3 tokens"),
        ({"mask": [0, 0, 0]}, "'mask' has to be 1 where the policy wrote"),
        ({"turn": [1, 0, 0]}, "'turn' falls"),
        ({"token_reward": [0, 0, "1"]}, "'token_reward' has '1', expected a number"),
    ):
        with pytest.raises(ValueError, match=rf"bad\.jsonl:1: .*{message}"):
            read.read(write(tmp_path / "bad.jsonl", [{**CONVERSATION, **changed}]))


@pytest.mark.parametrize(
    ("call", "task", "message"),
    [
        ("stored('pairs.jsonl', 'pairs')", "maze(side=3)", "is a world, whose files have conversations: kind 'rows'"),
        ("stored('rows.jsonl')", "panel(arithmetic())", "one row for an episode, and .* has several seats"),
    ],
)
def test_files_that_are_no_conversations_of_the_world_are_refused(call, task, message):
    with pytest.raises(ValueError, match=message):
        built("awr()", call, task=task)


def test_long_rows_and_memory_are_bounded(tmp_path):
    path = write(tmp_path / "r.jsonl", [*ROWS[:3], {**ROWS[0], "completion": "12345", "behaviour_logp": [-1.0] * 6}])
    with pytest.raises(ValueError, match=r"1 of 4 rows are longer than 6 tokens .* the first .*r\.jsonl:4"):
        reader().read(path)
    with pytest.warns(match="1 of 4 rows"):
        assert len(reader(overlong="drop").read(path)) == 3
    # of a row: 4 bytes for each of 6 tokens of the prompt, 4 of the completion, their log-probs, and 4 numbers
    with pytest.raises(ValueError, match=r"its 9 rows take 648 B on the host, more than megabytes=0, which is 0 B"):
        reader(megabytes=0).read(write(tmp_path / "s.jsonl", ROWS))


BAD = {
    "no reward": ({"prompt": "1", "completion": "2"}, "no value in column 'reward'"),
    "text for reward": ({**ROWS[0], "reward": "1"}, "'reward' is '1', expected a finite number"),
    "bool for reward": ({**ROWS[0], "reward": True}, "'reward' is True"),
    "no completion": ({"prompt": "1", "reward": 1}, "'completion' is None"),
    "empty completion": ({**ROWS[0], "completion": " "}, "'completion' is ' '"),
    "number for prompt": ({**ROWS[0], "prompt": 3}, "'prompt' is 3"),
    "log-probs": ({**ROWS[0], "behaviour_logp": [-1.0]}, "has 1 numbers for the 2 tokens"),
    "positive log-prob": ({**ROWS[0], "behaviour_logp": [-1.0, 0.5]}, "expected log-probs of at most 0"),
    "text for log-probs": ({**ROWS[0], "behaviour_logp": "ab"}, "expected a list"),
    "some without log-probs": ({**ROWS[0], "behaviour_logp": None}, "which other rows have"),
    "ids beyond the vocabulary": ({**ROWS[0], "token": [1, 9999]}, "'token' has 9999"),
    "ids of another tokenizer": ({**ROWS[0], "token": [*BYTES.encode("7"), BYTES.eos]}, "'token' is '7' here and"),
    "id that repeats": ({**ROWS[0], "id": "a"}, r"'id' 'a' is the id of .*bad\.jsonl:1 too"),
    "part": ({**ROWS[0], "prompt_value": None}, "no value in column 'prompt_value'"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_row_is_refused_by_file_and_line(name, tmp_path):
    row, message = BAD[name]
    path = write(tmp_path / "bad.jsonl", [{**ROWS[1], "id": "a"}, row])
    with pytest.raises(ValueError, match=rf"bad\.jsonl:2: .*{message}"):
        reader(parts=("prompt_value",)).read(path)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "1", "chosen": "2"}, "'rejected' is None"),
        ({"prompt": "1", "rejected": "2"}, "'chosen' is None"),
        ({"prompt": "1", "chosen": "2", "rejected": "2"}, "'chosen' and 'rejected' are equal"),
    ],
)
def test_a_pair_without_a_partner_is_refused(row, message, tmp_path):
    path = write(tmp_path / "bad.jsonl", [PAIRS[0], row])
    with pytest.raises(ValueError, match=rf"bad\.jsonl:2: .*{message}"):
        reader("pairs").read(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no rows"),
        (b'{"prompt": "\xff"}\n', r"bad\.jsonl:1"),
        (b"[1]\n", r"bad\.jsonl:1"),
        (None, "no file of a known"),
    ],
)
def test_a_bad_file_is_refused_before_device_work(content, message, tmp_path):
    path = tmp_path / ("bad.jsonl" if content is not None else "folder")
    path.mkdir() if content is None else path.write_bytes(content)
    call = f"stored({str(path)!r}, 'pairs')"
    with pytest.raises(ValueError, match=rf"phase 'main', stored\(.*{message}"):
        built("dpo()", call)
    with pytest.raises(ValueError, match=r"phase 'main', stored\(.*none\.jsonl: no such file"):
        built("dpo()", f"stored({str(tmp_path / 'none.jsonl')!r}, 'pairs')")


def test_the_digest_is_that_of_the_content(tmp_path):
    path = write(tmp_path / "p.jsonl", PAIRS)
    before = rows.digest(path)
    assert rows.digest(path) == before
    write(tmp_path / "p.jsonl", PAIRS[:8])
    assert rows.digest(path) != before
    (tmp_path / "p.jsonl.gz").write_bytes(gzip.compress(b'{"prompt": "1", "chosen": "2", "rejected": "3"}\n'))
    assert len(reader("pairs").read(str(tmp_path / "p.jsonl.gz"))) == 1
