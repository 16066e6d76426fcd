"""Tasks whose steps are judged by rules, run on texts, and compared with plain Python that reads only the texts."""

import functools
import re

import jax
import numpy as np
import pytest

from rljax import environments, types
from rljax.data import tokenizers
from rljax.environments.problems.shipped import shapes
from tests.support import on_device

CORRECT = types.Outcome.CORRECT


@functools.cache
def make(name, **settings):
    task = environments.lookup(name)(**settings)
    return task.bind(tokenizers.train([task.alphabet]))


@functools.partial(jax.jit, static_argnums=(0, 2))
def _everything(task, index, split, token, mask):
    demonstrations = task.demonstrations(index, split, jax.random.key(0))[0]
    verdict = task.verify(index, split, token, mask)
    return task.prompts(index, split).token, demonstrations, task.domain(index, split), verdict


def everything(task, index, split="train", texts=()):
    """Return prompts and demonstrations as texts, domains, and the verdicts of texts, in one program."""
    completions = on_device.completions(task, [*texts, *[""] * (len(index) - len(texts))])
    outputs = _everything(task, np.asarray(index, np.int32), split, *completions)
    prompts, token, domain, verdict = jax.tree.map(np.asarray, outputs)
    return on_device.decode(task, prompts), on_device.decode(task, token), domain, verdict


def agrees(task, problems, texts, unpaid=""):
    """Assert that outcomes, parts and payments of the first problems agree with plain Python; return the kinds.

    Args:
      task: with ``step_reward=1.0``.
      problems: each with ``prompt``; ``judge``, the kinds of the steps of a text; ``correct``, of an answer; and
        ``complete``, whether steps, if none is wrong, lead to an answer.
      texts: a completion of each problem.
      unpaid: the kind of steps that are neither right nor wrong.
    """
    verdict, kinds = everything(task, range(len(texts)), texts=texts)[-1], []
    for i, (problem, text) in enumerate(zip(problems, texts, strict=True)):
        steps, correct = problem.judge(text), problem.correct(text.rpartition(";")[2])
        if task.common.strict:
            correct &= {*steps} <= {"right", unpaid} and problem.complete(text.split(";")[:-1])
        assert (verdict.outcome[i] == CORRECT) == correct, (problem.prompt, text)
        for kind in task.rules.parts[1:]:
            assert verdict.parts[kind][i] == steps.count(kind), (kind, problem.prompt, text, steps)
        np.testing.assert_allclose(verdict.parts["right"][i], steps.count("right") / max(len(steps), 1), rtol=1e-6)
        expected = np.zeros(task.completion_length)
        expected[[m.start() for m in re.finditer(";", text)]] = [
            {"right": 1, unpaid: 0}.get(kind, -1) for kind in steps
        ]
        expected[len(text)] = 1 if correct else -1  # at end-of-sequence
        np.testing.assert_array_equal(verdict.token_reward[i], expected, text)
        kinds.append(steps)
    if task.common.votes:
        numbers, answers = verdict.parts["answer"][: len(texts)], [text.rpartition(";")[2] for text in texts]
        assert len({*zip(numbers.tolist(), answers, strict=True)}) == len({*answers}) == len({*numbers.tolist()})
    return kinds


def broken(texts, letters, rng):
    """Return texts with a few characters removed or added."""
    changed = []
    for text in texts:
        for _ in range(rng.randrange(1, 4)):
            place = rng.randrange(len(text))
            text = rng.choice([text[:place] + text[place + 1 :], text[:place] + rng.choice(letters) + text[place:]])
        changed.append(text)
    return changed


def shares_no_shape(pose, name, bands):
    """Assert that splits share no shape in any band; and the classes of the problems of the default settings."""
    seen = {"train": set(), "heldout": set()}
    for settings in bands:
        for split, each in seen.items():
            each |= {problem.shape() for problem in pose(make(name, **settings), 3000, split)[0]}
    assert not seen["train"] & seen["heldout"] and min(map(len, seen.values())) > 300
    task = make(name)
    held = {split: {*np.asarray(task.values(np.arange(9000), split))[:, 0].tolist()} for split in seen}
    assert len(held["heldout"]) == 4 and held["train"] | held["heldout"] == {*range(shapes.CLASSES)}


def refuses(name, cases):
    """Assert that settings are refused with a message of one line."""
    for settings, message in cases:
        with pytest.raises(ValueError, match=message) as error:
            environments.lookup(name)(**settings)
        assert "\n" not in str(error.value)
