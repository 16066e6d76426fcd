"""Rewards of pictures: what a completion draws, as SVG or by plotting code, and the picture it should be. No jax."""

import dataclasses
import functools
import inspect
import json
import math
import time
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from rljax.environments.verifiers import listings, similarity, svg
from rljax.environments.verifiers.sandbox import drawings, start
from rljax.language.ranges import Count, Fraction, NonNegative, Positive

_LIBRARIES = {
    "svg": start.Libraries(("resvg-py", "pillow", "matplotlib"), ("resvg_py", "PIL.Image", "PIL.ImageOps")),
    "plot": start.Libraries(("matplotlib",), ("PIL.ImageOps", "matplotlib.pyplot")),
}
_GRACE = 0.25  # seconds for a box to start and to be read
_TRIAL = {
    "svg": '<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"/>',
    "plot": "import matplotlib.pyplot as plt\nplt.plot([1])",
}
_MOST_WRITTEN = 1 << 18  # bytes of the elements
_MOST = 1000  # elements

Code = Literal["svg", "plot"]


class Drawing(NamedTuple):
    """What code draws."""

    picture: np.ndarray  # [side, side, 3] uint8
    elements: tuple[similarity.Element, ...]


class Unrendered(ValueError):
    """Code that draws no picture."""


@dataclasses.dataclass(frozen=True)
class Rendered:
    """A reward function: the weighted mean of how similar what a completion draws is to the picture of its row.

    The completion is SVG, or Python code that draws with matplotlib, in a fenced block or as it is. It is rendered in a
    sandbox to the size of the row's picture. The reference is code too: its elements are compared with the elements
    of the completion, and it is what is rendered if the row has no picture. Parts:

    - ``pixels``: 1 - the mean difference of pixels; ``ssim``: structural similarity; both of the pictures;
    - ``structure``: of the best matching of elements, whether their kinds are the same, how close their colours are,
      and the intersection over union of their boxes; plotting code says itself what its elements are;
    - ``timed_out``: 1 if it was stopped at its time limit.

    What cannot be rendered is "unparseable" and has reward 0, also if it is too slow, so that the policy learns to
    avoid it.
    """

    code: Code = "svg"  # what completions and references are
    pixels: NonNegative = 1.0  # weights of the parts
    ssim: NonNegative = 1.0
    structure: NonNegative = 1.0  # 0: rows need no code
    threshold: Fraction = 0.95  # the least reward that is correct
    side: Count = 64  # pixels of pictures where rows have none
    seconds: Positive = 2.0  # wall time of a drawing; verifier.timeout must be above twice as many and a half
    memory: Positive = 1.0  # GiB of address space
    unsafe: bool = False  # run plotting code although the kernel refuses namespaces

    group = False

    def __post_init__(self) -> None:
        """Raise ValueError if no part counts, a library is absent, or the kernel refuses what plotting code needs."""
        if not self.pixels + self.ssim + self.structure:
            raise ValueError("pixels, ssim, structure: all are 0; give one of them a weight")
        if self.side > 1024:
            raise ValueError(f"side: {self.side} is above 1024")
        try:
            _LIBRARIES[self.code].paths()
        except ValueError as error:
            raise ValueError(f"code={self.code!r}: {error}; in the checkout: pip install -e '.[svg]'") from None
        _check(self.code == "svg" or self.unsafe)

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the numbers that are always returned besides the reward."""
        return "pixels", "ssim", *(("structure",) if self.structure else ()), "timed_out"

    @property
    def longest(self) -> float:
        """The most seconds that a call takes; verifier.timeout must be longer."""
        return 2 * (self.seconds + _GRACE)  # also of a reference

    def self_test(self) -> None:
        """Start the sandbox and draw a trial; workers call this when they start."""
        try:
            self.draw(_TRIAL[self.code], 8)
        except (Unrendered, TimeoutError) as error:
            raise RuntimeError(f"code={self.code!r}: the renderer does not work here: {error}") from error

    def check(self, reference: Any, pictures: int, where: str) -> None:
        """Raise ValueError if a row has nothing to compare with, or its code is none."""
        if pictures > 1:
            raise ValueError(f"{where}: reward='rendered()' compares with one picture; the row has {pictures}")
        if not (isinstance(reference, str) and reference.strip()):
            if not pictures or self.structure:
                need = "structure needs code to compare with" if pictures else "the row has no picture and no code"
                raise ValueError(
                    f"{where}: reward='rendered()': {need}; set answer to a column of code"
                    + (", or structure=0" if pictures else ", or image to a column of pictures")
                )
            return
        try:
            source = self.source(reference)
            svg.read(source) if self.code == "svg" else compile(source, "plot.py", "exec")
        except (svg.Refused, SyntaxError) as error:
            raise ValueError(f"{where}: reward='rendered()': the reference {error}") from None

    def __call__(self, completion: str, reference: Any = "", *, pictures: Any = ()) -> Mapping[str, float | str]:
        """Judge a completion.

        Args:
          completion: text with a drawing.
          reference: code, or "" if there is a picture and ``structure`` is 0.
          pictures: of the row, ``[1, side, side, 3]`` uint8, or ().

        Raises:
          ValueError: the reference cannot be rendered.
        """
        side, parts = len(pictures[0]) if len(pictures) else self.side, dict.fromkeys(self.parts, 0.0)
        target = None
        if self.structure or not len(pictures):
            try:
                target = _reference(self, self.source(reference), side)
            except (Unrendered, TimeoutError) as error:
                raise ValueError(f"the reference cannot be rendered: {error}") from None
        picture = pictures[0] if target is None or len(pictures) else target.picture
        try:
            drawn = self.draw(self.source(completion), side)
        except Unrendered:
            return {"reward": 0.0, "outcome": "unparseable", **parts}
        except TimeoutError:
            return {"reward": 0.0, "outcome": "unparseable", **parts, "timed_out": 1.0}
        parts["pixels"] = float(similarity.pixels(drawn.picture, picture))
        parts["ssim"] = float(similarity.ssim(drawn.picture, picture))
        if target is not None and self.structure:
            parts["structure"] = similarity.of_elements(drawn.elements, target.elements)
        weights = {"pixels": self.pixels, "ssim": self.ssim, "structure": self.structure}
        reward = sum(weight * parts[name] for name, weight in weights.items() if weight) / sum(weights.values())
        return {"reward": reward, "outcome": "correct" if reward >= self.threshold else "wrong", **parts}

    def source(self, text: str) -> str:
        """Return the code of a text."""
        block = listings.program(text)
        return svg.extract(block) if self.code == "svg" else block

    def draw(self, source: str, side: int) -> Drawing:
        """Render code.

        Raises:
          Unrendered: it is refused, has an error or draws nothing.
          TimeoutError: it takes longer than ``seconds``.
        """
        if self.code == "svg":
            try:
                elements = svg.read(source)
            except svg.Refused as error:
                raise Unrendered(str(error)) from None
            return self.render(source, side)._replace(elements=tuple(elements))
        return self.render(source, side)

    def render(self, source: str, side: int) -> Drawing:
        """Render code in the sandbox, SVG without a look at what it has; raises as ``draw``."""
        written = json.dumps({"kind": self.code, "source": source, "side": side})
        job = {"kind": "run", "source": _HARNESS, "input": written}
        limits = start.Limits(cpu=math.ceil(self.seconds) + 1, memory=int(self.memory * 2**30))
        begun = start.begin(job, limits, self.code == "svg" or self.unsafe, _LIBRARIES[self.code])
        with begun as running:
            try:
                drawn = running.output(time.monotonic() + self.seconds, _MOST_WRITTEN + 3 * side * side)
            except EOFError:
                raise Unrendered("it writes too much") from None
        line, _, content = drawn.partition(b"\n")
        if len(content) != 3 * side * side:
            raise Unrendered("it draws no picture")
        return Drawing(np.frombuffer(content, np.uint8).reshape(side, side, 3), tuple(_elements(line)))


_HARNESS = inspect.getsource(drawings)


@functools.lru_cache(maxsize=1024)
def _reference(how: Rendered, source: str, side: int) -> Drawing:
    return how.draw(source, side)


@functools.cache
def _check(unsafe: bool) -> None:
    if not unsafe:
        start.check(unsafe)


def _elements(line: bytes) -> list[similarity.Element]:
    """Return the elements that a box has sent; ``Unrendered`` if these are none."""
    try:
        read = []
        for kind, (red, green, blue), (left, top, right, bottom) in json.loads(line):
            colour, box = (
                (float(red), float(green), float(blue)),
                (float(left), float(top), float(right), float(bottom)),
            )
            read.append(similarity.Element(str(kind), colour, box))
        if len(read) > _MOST or not np.isfinite([(*e.colour, *e.box) for e in read]).all():
            raise ValueError
    except (TypeError, ValueError, RecursionError):
        raise Unrendered("its elements cannot be read") from None
    return read
