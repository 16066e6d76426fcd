"""Drawings as rewards: what is refused, what the sandbox keeps apart, and how alike pictures are, by definition."""

import functools
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest

from rljax import types
from rljax.environments.config import VerifierConfig
from rljax.environments.questions import own
from rljax.environments.verifiers import judging, rendered, rewards, similarity, svg
from tests.environments.verifiers.code_cases import fenced, needs_namespaces

NAMESPACE = 'xmlns="http://www.w3.org/2000/svg"'
PARTS = ("pixels", "ssim", "structure")


def image(body, view='viewBox="0 0 10 10"'):
    return f"<svg {NAMESPACE} {view}>{body}</svg>"


RED = '<rect x="{}" y="1" width="4" height="4" fill="red"/>'
SCENE = image(RED.format(1) + '<circle cx="7" cy="7" r="2" fill="#00f"/><text x="1" y="9" font-size="3">Hi</text>')
PLOT = "import matplotlib.pyplot as plt\nplt.bar([1, 2], [3, 4], color='red')\nplt.title('two')\nplt.show()"


@functools.cache
def judge(code="svg", seconds=20.0, **settings):
    if code == "svg":
        pytest.importorskip("resvg_py")
    return rendered.Rendered(code, seconds=seconds, **settings)


# --- how alike: independent of the code, in float64 ---------------------------------------------------------


def ssim_by_definition(x, y):
    """Wang et al.: weighted means, variances about them, and the covariance, of every 11 x 11 window."""
    place = np.arange(11) - 5
    weight = np.exp(-(place[:, None] ** 2 + place[None] ** 2) / (2 * 1.5**2))
    weight, values = weight / weight.sum(), []
    for c, i, j in itertools.product(range(3), range(x.shape[0] - 10), range(x.shape[1] - 10)):
        a, b = (z[i : i + 11, j : j + 11, c].astype(np.float64) for z in (x, y))
        ma, mb = (weight * a).sum(), (weight * b).sum()
        va, vb = (weight * (a - ma) ** 2).sum(), (weight * (b - mb) ** 2).sum()
        both, c1, c2 = (weight * (a - ma) * (b - mb)).sum(), (0.01 * 255) ** 2, (0.03 * 255) ** 2
        values.append((2 * ma * mb + c1) * (2 * both + c2) / ((ma**2 + mb**2 + c1) * (va + vb + c2)))
    return max(np.mean(values), 0.0)


def pictures(seed, count=1, side=20):
    return np.random.default_rng(seed).integers(0, 256, (count, side, side + 3, 3), dtype=np.uint8)


@pytest.mark.parametrize("library", [np, jnp])
def test_ssim_and_pixels_are_what_is_defined(library):
    x, y = pictures(0)[0], pictures(1)[0]
    near = np.clip(x.astype(int) + np.random.default_rng(2).integers(-30, 30, x.shape), 0, 255).astype(np.uint8)
    for other in (y, near, np.zeros_like(x), 255 - x):
        pair = library.asarray(x), library.asarray(other)
        tolerance = 1e-12 if library is np else 1e-5
        np.testing.assert_allclose(similarity.ssim(*pair), ssim_by_definition(x, other), atol=tolerance)
        plain = 1 - np.abs(x.astype(float) - other).mean() / 255
        np.testing.assert_allclose(similarity.pixels(*pair), plain, atol=tolerance)
    assert 0.3 < ssim_by_definition(x, near) < 0.99


@pytest.mark.parametrize("function", [similarity.pixels, similarity.ssim])
def test_a_batch_is_its_pictures_and_equal_ones_have_exactly_1(function):
    x, y = pictures(3, 4), pictures(4, 4)
    assert np.all(function(x, x) == 1) and np.all(np.asarray(jax.jit(function)(x, jnp.asarray(x))) == 1)
    np.testing.assert_array_equal(function(x, y), [function(a, b) for a, b in zip(x, y, strict=True)])
    np.testing.assert_array_equal(function(x, y), function(y, x))
    small = pictures(5, 1, 4)[0]  # the window is as large as the picture
    assert function(small, small) == 1 > function(small, 255 - small)


def some(rng, count):
    """Return elements, of which some are equal in kind, colour or box."""
    low = rng.integers(0, 5, (count, 2)) / 10
    box = np.concatenate([low, low + rng.integers(0, 5, (count, 2)) / 10], axis=1)
    return rng.integers(0, 3, count), rng.integers(0, 3, (count, 3)) * 100.0, box


def test_structure_is_the_best_matching_on_both_sides():
    rng = np.random.default_rng(0)
    for n, m in itertools.product(range(1, 4), repeat=2):
        one, two = some(rng, n), some(rng, m)
        similar = similarity.pairs(*one, *two)
        best = max(
            sum(similar[i, j] for i, j in zip(rows, columns, strict=True))
            for rows in itertools.permutations(range(n), min(n, m))
            for columns in itertools.permutations(range(m), min(n, m))
        )
        elements = [
            [similarity.Element(str(k), tuple(c), tuple(b)) for k, c, b in zip(*each, strict=True)]
            for each in (one, two)
        ]
        assert similarity.of_elements(*elements) == pytest.approx(2 * best / (n + m))
        wide = np.pad(similar, ((0, 3 - n), (0, 3 - m)), constant_values=9.0)[None]  # what is not present cannot count
        for library in (np, jnp):
            value = similarity.structure(library.asarray(wide), library.asarray([n]), library.asarray([m]))
            np.testing.assert_allclose(value, 2 * best / (n + m), rtol=1e-6)


def test_pairs_by_areas():
    one = np.array([0]), np.array([[255.0, 0.0, 0.0]]), np.array([[0.005, 0.005, 0.495, 0.995]])  # 0.5 by 1 with edges
    two = np.array([1]), np.array([[0.0, 0.0, 0.0]]), np.array([[0.005, 0.505, 0.995, 0.995]])  # 1 by 0.5
    assert similarity.pairs(*one, *two) == pytest.approx((0 + 2 / 3 + 0.25 / 0.75) / 3)
    assert (
        similarity.of_elements([], []) == 1
        and similarity.of_elements([similarity.Element("a", (0,) * 3, (0,) * 4)], []) == 0
    )


# --- SVG ---------------------------------------------------------------------------------------------------


def test_boxes_by_hand():
    body = (
        '<g transform="translate(1 2) scale(2)" fill="#ff0000"><rect x="1" y="0" width="1" height="2"/></g>'
        '<line x1="0" y1="0" x2="5" y2="10" style="stroke: blue; fill: none"/><ellipse cx="5" cy="5" rx="1" ry="2"/>'
        '<polygon points="1,1 2,3 0,3" transform="rotate(90 0 0)"/><path d="M1 1h2v3l-1 1zm4 4c1 1 2 2 3 0"/>'
        '<defs><rect width="9" height="9"/></defs><text x="0" y="10" font-size="2">a <tspan>b</tspan></text>'
    )
    elements = svg.read(image(body, 'viewBox="0 0 10 20"'))  # in the middle of a square of 20
    boxes = {
        "rect": ((255, 0, 0), (3, 2, 5, 6)),
        "line": ((0, 0, 255), (0, 0, 5, 10)),
        "ellipse": ((0, 0, 0), (4, 3, 6, 7)),
        "polygon": ((0, 0, 0), (-3, 0, -1, 2)),
        "path": ((0, 0, 0), (1, 1, 8, 7)),
        "text a b": ((0, 0, 0), (0, 8, 3.6, 10)),
    }
    assert [e.kind for e in elements] == [*boxes]
    for element, (colour, box) in zip(elements, boxes.values(), strict=True):
        assert element.colour == colour
        np.testing.assert_allclose(
            np.array(element.box) * 20, np.add(box, [5, 0, 5, 0]), atol=1e-12, err_msg=element.kind
        )


REFUSED = {
    "a file": ('<image href="/etc/passwd" width="9" height="9"/>', "element 'image'"),
    "a reference to a file": ('<rect width="9" height="9" fill="url(file:///etc/passwd#a)"/>', "outside"),
    "a link of a gradient": ('<linearGradient id="a" href="http://localhost/b.svg#c"/>', "outside"),
    "a style sheet": ("<style>@import 'http://localhost/a.css';</style>", "element 'style'"),
    "a script": ("<script>1</script>", "element 'script'"),
    "copies of copies": ('<use href="#a"/>', "element 'use'"),
    "a filter": ('<filter id="a"/>', "element 'filter'"),
    "another namespace": ('<rect xmlns="urn:other"/>', "element 'rect'"),
    "many elements": ("<g/>" * 2000, "1000 elements"),
    "many levels": ("<g>" * 40 + "</g>" * 40, "32 levels"),
    "a long text": (f"<text>{'a' * 70_000}</text>", "65,536"),
    "an open tag": ("<g>", "XML"),
    "numbers beyond any": ('<rect width="1e300" height="1" transform="scale(1e300)"/>', "range"),
    "an image in it": (image(""), "inside"),
}
BOMB = '<!DOCTYPE svg [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;">]>' + image("<text>&b;</text>")
WHOLE = {
    "an entity bomb": (BOMB, "document type"),
    "a huge size": (image("", 'width="1e9" height="1e9"'), "100,000"),
    "a huge view": (image("", 'viewBox="0 0 1e9 1"'), "100,000"),
    "no size": (image("", ""), "100,000"),
    "an instruction": ('<?xml-stylesheet href="http://localhost/a.css"?>' + image(""), "instruction"),
    "another root": (f"<g {NAMESPACE}/>", "root"),
    "no image": ("a red square", "XML"),
    "nothing": ("", "XML"),
}


@pytest.mark.parametrize("name", [*REFUSED, *WHOLE])
def test_refused_is(name):
    source, reason = WHOLE[name] if name in WHOLE else (image(REFUSED[name][0]), REFUSED[name][1])
    with pytest.raises(svg.Refused, match=reason):
        svg.read(source)


def test_a_copy_has_reward_1_and_what_is_refused_none():
    same = judge()(f"Here:\n```svg\n{SCENE}\n```", SCENE)
    assert same == {"reward": 1.0, "outcome": "correct", **dict.fromkeys(PARTS, 1.0), "timed_out": 0.0}
    for source in (BOMB, image(REFUSED["a file"][0]), "no image"):
        verdict = judge()(source, SCENE)
        assert verdict == {"reward": 0.0, "outcome": "unparseable", **dict.fromkeys(PARTS, 0.0), "timed_out": 0.0}
    with pytest.raises(ValueError, match="reference cannot be rendered"):
        judge()(SCENE, "no image")


def test_what_is_farther_away_is_less_alike():
    target = image(RED.format(0))
    scores = [judge()(image(RED.format(x)), target) for x in (0, 1, 2, 3)]
    for part in ("reward", *PARTS):
        values = [score[part] for score in scores]
        assert values == sorted(values, reverse=True) and len(set(values)) == 4, part
    other = judge()(image(RED.format(0).replace("red", "blue")), target)
    assert scores[0]["structure"] > other["structure"] > judge()(image(""), target)["structure"] == 0
    picture = judge().draw(target, 64).picture
    assert np.all(picture[10, 2] == (255, 0, 0)) and np.all(picture[40, 40] == 255)


@needs_namespaces
def test_the_renderer_sees_no_file_even_where_nothing_is_refused(tmp_path):
    PIL.Image.new("RGB", (4, 4), (0, 0, 255)).save(tmp_path / "blue.png")
    source = image(f'<image href="{tmp_path}/blue.png" width="10" height="10"/>')
    assert np.all(judge().render(source, 16).picture == 255)
    with pytest.raises(rendered.Unrendered):
        judge().render("<svg", 16)


# --- plotting code -----------------------------------------------------------------------------------------

DRAW = "\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\n"
# Each draws only if it succeeds.
ATTACKS = {
    "a file of the machine": "open('/etc/passwd').read()",
    "a file of the user": "open(ROOT).read()",
    "the network": "import socket; socket.create_connection(('127.0.0.1', PORT), timeout=1)",
    "another program": "import subprocess; subprocess.run(['ls'], check=True)",
    "a picture from the network": "import urllib.request; urllib.request.urlopen('http://127.0.0.1:PORT', timeout=1)",
    "a package": "import jax",
    "memory": "x = bytearray(2 * 10**9)",
    "a package of its own": "open('/packages/numpy/own.py', 'w').write('')",
}


@pytest.mark.full
@needs_namespaces
def test_attacks_by_plotting_code_draw_nothing(tmp_path):
    import socket

    (tmp_path / "secret").write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        for name, attack in ATTACKS.items():
            attack = attack.replace("ROOT", repr(str(tmp_path / "secret"))).replace("PORT", port)
            assert judge("plot")(fenced(f"{attack}{DRAW}"), PLOT)["outcome"] == "unparseable", name
    assert judge("plot")(fenced(DRAW), PLOT)["outcome"] == "wrong"
    assert (
        judge("plot")(fenced("1 +"), PLOT)["outcome"]
        == judge("plot")(fenced("x = 1"), PLOT)["outcome"]
        == "unparseable"
    )


@pytest.mark.full
@needs_namespaces
def test_plotting_code_that_does_not_end_is_ended():
    quick = judge("plot", seconds=2.0)
    for loop in (
        "while True: pass",
        "import time; time.sleep(60)",
        "import os\nwhile True:\n  try: os.fork()\n  except OSError: pass",
    ):
        verdict = quick(fenced(loop), PLOT)
        assert verdict["timed_out"] == 1 and verdict["outcome"] == "unparseable" and verdict["reward"] == 0
    assert (
        quick(fenced("import os\nwhile True: os.write(3, b'x' * 9999); os.write(1, b'x' * 9999)"), PLOT)["reward"] == 0
    )
    assert judge("plot")(fenced(PLOT), PLOT)["reward"] == 1  # the sandbox goes on


@pytest.mark.full
@needs_namespaces
def test_plots_by_their_pixels_and_elements():
    same = judge("plot")(fenced(PLOT), PLOT)
    assert same == {"reward": 1.0, "outcome": "correct", **dict.fromkeys(PARTS, 1.0), "timed_out": 0.0}
    closed = PLOT.replace("plt.show()", "plt.savefig('a.png')\nplt.close()")  # whose figure is kept
    assert judge("plot")(closed, PLOT)["reward"] == 1
    title = judge("plot")(PLOT.replace("two", "2"), PLOT)["structure"]
    colour = judge("plot")(PLOT.replace("red", "blue"), PLOT)
    assert 1 > title > 0.8 and 1 > colour["structure"] > 0.5 and colour["pixels"] < 1
    elements = judge("plot").draw(PLOT, 48).elements
    assert [e.kind for e in elements] == ["Rectangle", "Rectangle", "text two"]
    assert elements[0].colour == (255, 0, 0) and elements[0].box[1] > elements[1].box[1] > 0
    large = PLOT.replace("plt.bar", "plt.figure(figsize=(1e9, 1e9)); plt.bar")
    assert judge("plot").draw(large, 48).picture.shape == (48, 48, 3)


# --- as a user names it ------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """Return a folder of pictures and rows with what draws them."""
    rows = []
    for x in range(12):
        source = image(RED.format(x / 2))
        PIL.Image.fromarray(judge().draw(source, 32).picture).save(tmp_path / f"{x}.png")
        rows.append({"question": f"{x}?", "file": f"{x}.png", "svg": source, "empty": ""})
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_rows_of_pictures_are_judged_in_workers(folder):
    settings = {
        "image": "file",
        "answer": "svg",
        "reward": "rendered(ssim=2.0, seconds=20.0)",
        "pixels": 32,
        "heldout": 0.3,
    }
    task = own.jsonl(folder / "rows.jsonl", **settings)
    assert task.parts == (*PARTS, "timed_out") and task.reward.longest == 40.5
    targets = [task.target(i, "train") for i in range(2)]
    columns = [task.columns(i, "train") for i in range(2)]
    assert columns[0]["pictures"].shape == (1, 32, 32, 3) and targets[0] != targets[1]
    with judging.Verifiers(task.reward, VerifierConfig(workers=1, timeout=60)) as verifiers:
        scored = verifiers.submit([targets[0], targets[0]], targets, columns).result()
    assert scored.errors == [] and scored.reward[0] == 1 > scored.reward[1] > 0
    assert scored.outcome.tolist() == [types.Outcome.CORRECT, types.Outcome.WRONG]
    mean = (scored.parts["pixels"] + 2 * scored.parts["ssim"] + scored.parts["structure"]) / 4
    np.testing.assert_allclose(scored.reward, mean, rtol=1e-6)


ERRORS = {
    "no picture and no code": ({"answer": "", "reward": "rendered(structure=0)"}, "no picture and no code"),
    "a picture and no code": ({"image": "file", "answer": "", "reward": "rendered()"}, "structure needs code"),
    "empty code": ({"image": "file", "answer": "empty", "reward": "rendered()"}, "structure needs code"),
    "code that is none": ({"answer": "question", "reward": "rendered()"}, "jsonl:1: .*is not XML"),
    "plotting code that is none": ({"answer": "question", "reward": "rendered('plot')"}, "jsonl:1: .*invalid syntax"),
    "an unknown part": ({"answer": "svg", "reward": "rendered(colour=1.0)"}, "no argument 'colour'.*ssim"),
    "no part": ({"answer": "svg", "reward": "rendered(pixels=0, ssim=0, structure=0)"}, "all are 0"),
    "unknown code": ({"answer": "svg", "reward": "rendered('png')"}, "one of 'svg', 'plot'"),
    "a negative weight": ({"answer": "svg", "reward": "rendered(ssim=-1.0)"}, r"in \[0, inf\)"),
    "too many pixels": ({"answer": "svg", "reward": "rendered(side=100000)"}, "above 1024"),
    "an unknown name": ({"answer": "svg", "reward": "renderd()"}, r"Did you mean 'rendered\(\)'"),
}


@needs_namespaces
@pytest.mark.parametrize("name", ERRORS)
def test_an_error_names(name, folder):
    settings, message = ERRORS[name]
    with pytest.raises(ValueError, match=message):
        own.jsonl(folder / "rows.jsonl", **settings)


def test_an_absent_library_is_named():
    absent = rendered.start.Libraries(("no-such-distribution",))
    with pytest.raises(ValueError, match="no-such-distribution is not installed"):
        absent.paths()
    assert {"numpy", "matplotlib", "PIL"} <= rendered.start.Libraries(("matplotlib",)).paths().keys()


def test_several_rewards_in_one():
    judge()  # skips where the extra is absent
    verdict = rewards.combine({"rendered(structure=0)": 1.0, "exact": 0.5})(SCENE, SCENE)
    assert verdict["reward"] == 1.5 and verdict["rendered"] == 1 and verdict["rendered/ssim"] == 1


def test_the_image_of_a_completion_and_compact_flags_of_arcs():
    one = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 40 40"><path d="M10 10 a10 10 0 0 1 10 10"/></svg>'
    assert svg.extract(f"{one} is an <svg> element.") == one
    compact = svg.read(one.replace("0 0 1 10 10", "0 0110 10"))
    assert [e.box for e in compact] == [e.box for e in svg.read(one)]
    start = svg.read(one.replace("a10 10 0 0 1 10 10", ""))  # too few numbers draw nothing
    for digits in ("5 5 0 0 1 20", "2" * 4000):
        assert [e.box for e in svg.read(one.replace("a10 10 0 0 1 10 10", f"A{digits}"))] == [e.box for e in start]
