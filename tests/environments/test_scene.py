"""Scene graphs: the verdict's parts against plain Python, with the assignment of scipy."""

import itertools
import re

import jax
import numpy as np
import pytest
import scipy.optimize

from rljax import types
from tests.environments import test_drawn as drawn_tasks
from tests.support import on_device

OBJECT, RELATION = r"([A-H])" + r" (\d{1,3})" * 4, r"([A-H])([<^])([A-H])"


def read(text, count):
    """Return objects and relations, or None if the text is not in form."""
    one, other = (f"{form}(,{form})*" for form in (OBJECT, RELATION))
    if not re.fullmatch(rf"{one}/({other})?", text):
        return None
    nodes = [(name, [*map(int, box)]) for name, *box in re.findall(OBJECT, text.split("/")[0])]
    edges = re.findall(RELATION, text.split("/")[1])
    return None if len(nodes) > count + 1 or len(edges) > count * (count - 1) // 2 + 1 else (nodes, edges)


def pixels(box):
    return {*itertools.product(range(box[0], box[2] + 1), range(box[1], box[3] + 1))}


def iou(one, other):
    return len(pixels(one) & pixels(other)) / max(len(pixels(one) | pixels(other)), 1)


def cost(node, other):
    (name, box), (letter, written) = node, other
    around = [min(a, b) for a, b in zip(box[:2], written[:2], strict=True)]
    around += [max(a, b) for a, b in zip(box[2:], written[2:], strict=True)]
    union, whole = len(pixels(box) | pixels(written)), len(pixels(around))
    distance = np.abs(np.subtract(box, written)).sum() / 32
    return (name != letter) + 2 * (1 - iou(box, written) + (whole - union) / whole) + 5 * distance


def precision(nodes, written):
    """The mean over letters and thresholds of the area under the curve of precision, which has one step."""
    values = []
    for (name, box), threshold in itertools.product(nodes, np.arange(10, 20) / 20):
        same = [iou(box, other) >= threshold for letter, other in written if letter == name]
        values.append(1 / (same.index(True) + 1) if any(same) else 0.0)
    return np.mean(values) * min(1, len(nodes) / len(written))


def judged(text, target):
    nodes, edges = read(target, 4)
    graph = read(text, len(nodes))
    if graph is None:
        return dict.fromkeys(("format", "map", "node", "box", "edge", "recall", "correct"), 0.0)
    written, relations = graph
    costs = np.array([[cost(node, other) for other in written] for node in nodes])
    match = dict(zip(*scipy.optimize.linear_sum_assignment(costs), strict=True))
    node = [i in match and written[match[i]][0] == name for i, (name, _) in enumerate(nodes)]
    near = []
    for i, (_, box) in enumerate(nodes):
        other = written[match[i]][1] if i in match else None
        distance = 0 if other is None else np.abs(np.subtract(box, other)).sum() / 32
        near.append(0 if other is None else (2 * iou(box, other) + 5 * np.exp(-distance)) / 7)
    called = {name: written[match[i]][0] for i, (name, _) in enumerate(nodes) if i in match}
    edge = [(called.get(a), relation, called.get(b)) in relations for a, relation, b in edges]
    fits = {name for name, box in nodes if any(name == letter and iou(box, other) >= 0.5 for letter, other in written)}
    recall = [triple in relations and {triple[0], triple[2]} <= fits for triple in edges]
    correct = all(recall) and len(written) == len(nodes) and len(relations) == len(edges)
    means = {"node": node, "box": near, "edge": edge, "recall": recall}
    parts = {name: float(np.mean(x)) for name, x in means.items()}
    return {"format": 1.0, "map": precision(nodes, written), "correct": float(correct), **parts}


def variants(target, rng):
    """Return the graph with moved boxes, other letters and relations, objects left out or doubled, or out of form."""
    nodes, edges = read(target, 4)
    nodes = [(name, np.maximum(np.add(box, rng.integers(-2, 3, 4) * (rng.random() < 0.6)), 0)) for name, box in nodes]
    nodes = [("ABCDEFGH"[rng.integers(8)] if rng.random() < 0.2 else name, box) for name, box in nodes]
    edges = [(a, "<^"[rng.integers(2)] if rng.random() < 0.2 else relation, b) for a, relation, b in edges]
    kind = rng.integers(6)
    if kind < 2:
        rng.shuffle(nodes)
        nodes = nodes[: len(nodes) - kind] or nodes
    if kind == 2:
        nodes = [nodes[0], *nodes]
    if kind == 3:
        edges = edges[:-1]
    text = ",".join(" ".join(map(str, [name, *box])) for name, box in nodes) + "/" + ",".join(map("".join, edges))
    forms = [text + ",", text.replace("/", ",", 1), text.replace(" ", "  ", 1), f"{text},A<", text[1:], f"{text}/A<B"]
    forms += [text.replace("/", ",A 1 2 3 4" * 3 + "/"), text + ",A<B" * 5, text.replace(" ", " 1000", 1), "", "/"]
    return forms[rng.integers(len(forms))] if rng.random() < 0.25 else text


@pytest.mark.full
@pytest.mark.parametrize("objects", [2, 3, 4])
def test_the_parts_of_a_graph_against_plain_python(objects):
    task, rng = drawn_tasks.make("scene", objects=objects, completion_length=140), np.random.default_rng(objects)
    index = np.arange(400, dtype=np.int32)
    targets = drawn_tasks.decode(task, drawn_tasks.run(task, index, "train")[1])
    texts = [variants(target, rng) if i % 8 else target for i, target in enumerate(targets)]
    verdict = jax.jit(lambda i, token, mask: task.verify(i, "train", token, mask))(
        index, *on_device.completions(task, texts)
    )
    rows = [judged(*pair) for pair in zip(texts, targets, strict=True)]
    for name in ("format", "map", "node", "box", "edge", "recall"):
        expected = np.array([row[name] for row in rows])
        assert np.unique(expected).size > 1
        np.testing.assert_allclose(verdict.parts[name], expected, atol=1e-5, err_msg=name)
    correct = np.array([row["correct"] for row in rows])
    np.testing.assert_array_equal(verdict.outcome == types.Outcome.CORRECT, correct > 0)
    assert 50 < correct.sum() < 350


@pytest.mark.full
def test_demonstrations_are_wrong_where_they_have_mistakes():
    task = drawn_tasks.make("scene", slip=0.2, noise=0.2)
    index = np.arange(64, dtype=np.int32)
    _, token, verdict = drawn_tasks.run(task, index, "train")
    right = drawn_tasks.decode(task, jax.jit(lambda i: task.solutions(i, "train")[0])(index))
    rows = [judged(*pair) for pair in zip(drawn_tasks.decode(task, token), right, strict=True)]
    np.testing.assert_array_equal(verdict.outcome == types.Outcome.CORRECT, [row["correct"] > 0 for row in rows])
    assert 0 < verdict.reward.mean() < 0.5
    assert (
        len(task.marks(0, "train", right[0])[0]) == 2
        and task.marks(0, "train", right[0])[0] == task.marks(0, "train", "")[1]
    )
