"""Word problems over dependency graphs: ``red ink is 3. hot tea is red ink plus 5. how much hot tea?``.

In the manner of iGSM (Ye et al. 2024, Physics of Language Models 2.1, arXiv 2407.20311), answered by one step for each
quantity that is needed, ``red ink=3;hot tea=red ink+5=3+5=8;8``.
"""

import dataclasses
import itertools
from typing import Annotated, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.environments import characters
from rljax.environments.problems import constructors, rules
from rljax.environments.problems.shipped import graphs, shapes
from rljax.language.settings import setting
from rljax.types import Range

Operations = Annotated[int, Range(2, 12)]
_THINGS = "ink tea oil hay ice jam wax rye".split()
_NAMES = {
    "pairs": [f"{kind} {thing}" for kind in "red hot old raw dry new tan wet".split() for thing in _THINGS],
    "words": [
        *"ant ape ash axe bag bat bay bed bee bow box bud bug bus cab cap".split(),
        *"car cat cod cow cup dam day den dog ear eel egg elk elm fan fig".split(),
        *"fox gem gum hat hen hut ink ivy jam jar key kid lid log map mud".split(),
        *"net nut oak oil owl pan pea pen pig pot ram rat rug sea ski sun".split(),
    ],
    "letters": [*"ABCDEFGHIJKLMNOPQRSTUVWXYZ"],
}
_TIMES = ["twice", *(f"{n} times" for n in range(3, 10))]
# columns of what a capital letter in a template stands for, at most: X is defined by A, B and the number N, or M in
# words; P and R are the values of A and B, and V is that of X
_WIDTHS = {"X": 7, "A": 7, "B": 7, "N": 2, "M": 7, "P": 2, "R": 2, "V": 2}
# of each wording a sentence for each of ``graphs.KINDS``, and the question
_WORDINGS = {
    "formula": ("X=N, ", "X=A+N, ", "X=A-N, ", "X=A*N, ", "X=A+B, ", "X=A-B, ", "X?"),
    "plain": (
        *("X is N. ", "X is A plus N. ", "X is A minus N. ", "X is A times N. "),
        *("X is A plus B. ", "X is A minus B. ", "how much X?"),
    ),
    "phrases": (
        *("X: N. ", "X: N more than A. ", "X: N less than A. ", "X: M A. "),
        *("X: sum of A and B. ", "X: A less B. ", "how much X?"),
    ),
}
_TEXTS = [*_TIMES, *itertools.chain(*_NAMES.values(), *_WORDINGS.values())]
_STEPS = ("X=V;", "X=A+N=P+N=V;", "X=A-N=P-N=V;", "X=A*N=P*N=V;", "X=A+B=P+R=V;", "X=A-B=P-R=V;")


def check_prime(modulus: int) -> None:
    """Raise ValueError if a modulus below 121 is not a prime."""
    if not all(modulus % divisor for divisor in range(2, 10)):
        raise ValueError(f"modulus: {modulus} is not a prime")


def _table(templates: tuple[str, ...]) -> np.ndarray:
    """Return templates as rows of code points, or -1 - the column of the fields that stands there; 0 at the end."""
    first = dict(zip(_WIDTHS, np.cumsum([0, *_WIDTHS.values()]).tolist(), strict=False))
    rows = [
        [-1 - first[c] - i if c in first else ord(c) for c in t for i in range(_WIDTHS.get(c, 1))] for t in templates
    ]
    return np.asarray([row + [0] * (max(map(len, rows)) - len(row)) for row in rows], np.int32)


class _Graph(NamedTuple):
    """Quantities ``[P, Q]``: G given ones, the computed ones, distractors."""

    kind: jax.Array  # of graphs.KINDS
    a: jax.Array  # operands, 0 where there is none
    b: jax.Array
    number: jax.Array  # that is given or in the definition
    name: jax.Array
    present: jax.Array  # bool, False for given quantities that the shape lacks


@dataclasses.dataclass(frozen=True)
class Reasoning(shapes.Shaped):
    """Find a quantity that is defined by others, which sums, differences and multiples modulo a prime define.

    The splits share no shape: no graph of the quantities that are needed, with their operations, in which sums commute.
    Which shapes are held out depends on ``depth``, but not on the other numbers of operations. Distractors are given or
    computed from any others, and the sentences are in any order. A demonstration has a step for each quantity that is
    needed, given ones before their first use. A slip is a step that takes another operand, or one that is omitted, so
    that its first operand stands for it; noise is another residue. The steps after it continue from what was written.

    Every step is judged, in any order in which quantities can be computed: it must name a quantity, repeat its
    definition and the values of its operands, and write its residue; a sum may have its operands exchanged. Parts are
    the share of steps that are ``right``, and the number of those that are not: ``unknown``, without a quantity;
    ``operands``, another definition; ``premature``, before a step of an operand; ``arithmetic``, a wrong value,
    also one copied from an earlier step; ``needless``, of a distractor, or once more. With ``strict`` an answer
    needs a right step of the quantity that is asked, and no wrong step but needless ones: guesses do not count.
    """

    operations: Operations | tuple[Operations, Operations] = setting(
        (2, 6), "Computed quantities that are needed; (least, most): each number is a domain."
    )
    distractors: Annotated[int, Range(0, 8)] = setting(2, "Quantities that are not needed.")
    depth: tuple[Operations, Operations] | None = setting(
        None, "(least, most) computed quantities of the longest chain; None: any."
    )
    modulus: Annotated[int, Range(11, 97)] = setting(23, "The prime modulo which everything is computed.")
    wording: Literal["formula", "plain", "phrases"] | None = setting(None, "How prompts are worded; None: drawn.")
    names: Literal["pairs", "words", "letters"] = setting(
        "pairs", "Names of quantities: 64 pairs of 8 and 8 words, 64 words, or 26 letters."
    )

    name = "reasoning"
    knob = "operations"
    unit = "operation"
    parts = ("right", "unknown", "operands", "premature", "arithmetic", "needless")
    alphabet = "".join(sorted({*"0123456789", *"".join(_TEXTS)}))

    def __post_init__(self) -> None:
        """Raise ValueError if a setting is out of range, or is incompatible with another."""
        super().__post_init__()
        if self.depth is not None:
            self.check_order("depth", self.depth)
            if self.depth[0] > (low := self.range[0]):
                why = f"asks for longer chains than operations={low} gives; give (least, most) with least up to {low}"
                raise ValueError(f"depth: {self.depth} {why}")
        check_prime(self.modulus)

    @property
    def mistakes(self) -> tuple[int, int]:
        """A step is a computed quantity."""
        return self._computed, self.modulus

    def prompt(self, value: jax.Array) -> jax.Array:
        """Write a sentence for each quantity, and the question."""
        graph, wording = self._graph(value), self.split(value)["wording"]
        rows, count = graph.kind.shape
        kinds, order = len(graphs.KINDS), jnp.argsort(self.split(value)["order"], axis=1)
        shown = [_WORDINGS[name] for name in self._wordings]
        sentences = tuple(sentence for each in shown for sentence in each[:kinds])
        text = _write(
            self.names, graph, sentences, kinds * wording + graph.kind, jnp.tile(jnp.arange(count), (rows, 1))
        )
        text = jnp.where(graph.present[:, :, None], text, 0)[jnp.arange(rows)[:, None], order]
        asked = jnp.full((rows, 1), self._givens + self._computed - 1)
        question = _write(self.names, graph, tuple(each[kinds] for each in shown), wording, asked)
        longest = max(
            self._width(each[kinds])
            + self._most([self._width(s, 2 if s is each[0] else 1) for s in each[:kinds]])
            + self.distractors * max(map(self._width, each[:kinds]))
            for each in shown
        )
        return characters.pack(characters.line(rows, text.reshape(rows, -1), question[:, 0]), longest)

    def solve(self, value: jax.Array, slip: jax.Array, off: jax.Array) -> rules.Solution:
        """Write a step for each quantity that is needed."""
        graph, first = self._graph(value), self._givens
        computed, place = slice(first, first + self._computed), first + jnp.arange(self._computed)[None]
        a, b, two = graph.a[:, computed], graph.b[:, computed], graph.kind[:, computed] >= 4
        other = jnp.full_like(a, -1)
        for back in (3, 2, 1):  # the latest of the quantities before that is not an operand
            j = jnp.broadcast_to(jnp.maximum(place - back, 0), a.shape)
            fits = jnp.take_along_axis(graph.present, j, axis=1) & (a != j) & ~(two & (b == j))
            other = jnp.where(fits & (place >= back), j, other)
        wrong = slip & (self.split(value)["slip"] == 0) & (other >= 0)
        omitted = slip & ~wrong
        graph = graph._replace(a=graph.a.at[:, computed].set(jnp.where(wrong, other, a)))
        values, done = self._values(graph, off, omitted), graph.present[:, computed] & ~omitted
        a, b, two = graph.a[:, computed], graph.b[:, computed], graph.kind[:, computed] >= 4
        used = jnp.stack([jnp.where(done, a, -1), jnp.where(done & two, b, -1)], axis=2).reshape(len(value), -1)
        again = jnp.any(jnp.tril(used[:, :, None] == used[:, None, :], -1), axis=2)
        stated = ((used >= 0) & (used < first) & ~again).reshape(*done.shape, 2)
        step = jnp.broadcast_to(jnp.arange(self._computed) + first, done.shape)
        of = jnp.stack([a, b, step], axis=2).reshape(len(value), -1)
        shown = jnp.concatenate([stated, done[:, :, None]], axis=2).reshape(of.shape)
        kind = jnp.where(of < first, 0, jnp.take_along_axis(graph.kind, of, axis=1))
        working = jnp.where(shown[:, :, None], _write(self.names, graph, _STEPS, kind, of, values), 0)
        longest = self._most([self._width(s, 1) for s in _STEPS])
        return rules.Solution(
            characters.pack(working.reshape(len(value), -1), longest),
            characters.decimal(values[:, computed.stop - 1], 2),
        )

    def judge(self, value: jax.Array, written: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Compare with the residue in decimal, without leading zeros."""
        true = self._values(self._graph(value))[:, self._givens + self._computed - 1]
        return rules.exact(characters.decimal(true, 2), written, "0123456789")

    def judge_steps(self, value: jax.Array, written: jax.Array) -> rules.Steps:
        """Compare each step with the right step of every quantity; a step that is needless is not paid."""
        graph = self._graph(value)
        ends, steps = written == ord(";"), self._right_steps(graph)
        whole = jnp.sum(steps[:, : graph.kind.shape[1]] != 0, axis=2)  # the characters of a right step
        matched = jnp.max(rules.matched(steps, written, ends).reshape(*written.shape, 2, -1), axis=2)
        definition = jnp.where(
            graph.kind == 0, whole, jnp.where(graph.kind < 4, self._width("X=A+N=", 1), self._width("X=A+B="))
        )
        named = matched >= self._width("X=")
        which, known = jnp.argmax(named, axis=2), jnp.any(named, axis=2)  # names differ, so at most one
        same = jnp.take_along_axis(matched, which[:, :, None], axis=2)[:, :, 0]
        kind, a, b, start, full = (
            jnp.take_along_axis(x, which, axis=1) for x in (graph.kind, graph.a, graph.b, definition, whole)
        )
        complete = same == full

        def before(x: jax.Array) -> jax.Array:  # [P, T, Q] whether an earlier step ended with x
            seen = jax.lax.cummax((x & ends[:, :, None]).astype(jnp.int8), axis=1)
            return jnp.pad(seen, ((0, 0), (1, 0), (0, 0)))[:, :-1] > 0

        def at(x: jax.Array, of: jax.Array) -> jax.Array:
            return jnp.take_along_axis(x, of[:, :, None], axis=2)[:, :, 0]

        done = before(named) | (graph.kind == 0)[:, None]
        ready = (kind == 0) | (at(done, a) & ((kind < 4) | at(done, b)))
        needless = which >= self._givens + self._computed
        written_right = matched == whole[:, None]
        needless |= at(before(written_right), which)
        tests = (~known, same < start, ~ready, ~complete, needless)
        shown = jnp.any(written_right[:, :, self._givens + self._computed - 1] & ends, axis=1)
        return rules.graded(ends, shown, dict(zip(self.parts[1:], tests, strict=True)), "needless")

    @property
    def _computed(self) -> int:
        return self.range[1]

    @property
    def _givens(self) -> int:
        return graphs.givens(self._computed)

    @property
    def _wordings(self) -> tuple[str, ...]:
        return tuple(_WORDINGS) if self.wording is None else (self.wording,)

    @property
    def layout(self) -> dict[str, tuple[int, int]]:
        """The number of values of each kind of integer of a problem, and how many there are."""
        computed, residues = self._computed, self.modulus - 1
        count = self._givens + computed + self.distractors
        return {
            "class": (graphs.CLASSES, 1),
            "domain": (len(self.domain_names), 1),
            "shape": (graphs.MOST // graphs.CLASSES, 1),  # among the shapes of its class and domain
            "given": (residues, self._givens),
            "digit": (8, computed + self.distractors),
            "slip": (2, computed),  # how a step goes wrong
            "other": (residues, self.distractors),
            "kind": (len(graphs.KINDS), self.distractors),
            "operand": (2**16, 2 * self.distractors),
            "name": (2**16, len(_NAMES[self.names])),
            "order": (2**16, count),
            "wording": (len(self._wordings), 1),
        }

    def _width(self, template: str, digits: int = 2) -> int:
        """Return the most characters of a template whose numbers ``N`` have as many digits."""
        widths = _WIDTHS | dict.fromkeys("XAB", len(_NAMES[self.names][0])) | {"N": digits}
        return sum(widths.get(c, 1) for c in template)

    def _most(self, width: list[int]) -> int:
        """Return the most characters of the needed quantities, from those of each of ``graphs.KINDS``."""
        two = min(graphs.binaries(self._computed), self._computed)
        return self._givens * width[0] + two * max(width[4:]) + (self._computed - two) * max(width[1:4])

    def _graph(self, value: jax.Array) -> _Graph:
        x, first, last = self.split(value), self._givens, self._givens + self._computed
        table, start = (jnp.asarray(part) for part in graphs.band(*self.range, self.depth))
        domain, least = x["domain"][:, 0], x["class"][:, 0]
        count = (start[domain + 1] - start[domain] - least + graphs.CLASSES - 1) // graphs.CLASSES
        shape = table[start[domain] + least + graphs.CLASSES * (x["shape"][:, 0] % count)]
        kind, a, b = jnp.moveaxis(shape.astype(jnp.int32), 2, 0)
        none = jnp.zeros((len(value), first), jnp.int32)
        # those needed are the last of the given and the last of the computed quantities
        absent = jnp.minimum(jnp.min(jnp.where(kind > 0, a, first), 1), jnp.min(jnp.where(kind >= 4, b, first), 1))
        absent, gap = absent[:, None], jnp.sum(kind == 0, axis=1, keepdims=True)
        pool = last - absent - gap + jnp.arange(self.distractors)[None]
        one, other = x["operand"][:, : self.distractors] % pool, x["operand"][:, self.distractors :]
        other = (one + 1 + other % (pool - 1)) % pool
        one, other = (absent + each + gap * (absent + each >= first) for each in (one, other))
        chosen = jnp.where(x["kind"] > 0, one, 0), jnp.where(x["kind"] >= 4, other, 0)
        number = jnp.where(x["kind"] > 0, x["digit"][:, self._computed :] + 2, x["other"] + 1)
        number = jnp.concatenate([x["given"] + 1, x["digit"][:, : self._computed] + 2, number], axis=1)
        kind, a, b = (
            jnp.concatenate(parts, axis=1)
            for parts in ((none, kind, x["kind"]), (none, a, chosen[0]), (none, b, chosen[1]))
        )
        name = jnp.argsort(x["name"], axis=1)[:, : kind.shape[1]]
        place = jnp.arange(kind.shape[1])[None]
        return _Graph(kind, a, b, number, name, (place >= absent) & ((place < first) | (place >= first + gap)))

    def _values(self, graph: _Graph, off: jax.Array | int = 0, omitted: jax.Array | bool = False) -> jax.Array:
        """Return the values ``[P, Q]``.

        Args:
          graph: the quantities.
          off: ``[P, computed]``, what is added to each computed quantity.
          omitted: ``[P, computed]``, whether its first operand stands for it.
        """
        computed = slice(self._givens, self._givens + self._computed)
        off, omitted = (jnp.zeros_like(graph.kind).at[:, computed].set(x).T for x in (off, omitted))
        rows = jnp.arange(len(graph.kind))

        def one(values: jax.Array, q: tuple[jax.Array, ...]) -> tuple[jax.Array, None]:
            place, kind, a, b, number, off, omitted = q
            x, y = values[rows, a], jnp.where(kind >= 4, values[rows, b], number)
            result = jnp.where(kind == 3, x * y, jnp.where((kind == 2) | (kind == 5), x - y, x + y))
            result = jnp.where(omitted > 0, x, (result + off) % self.modulus)
            return values.at[:, place].set(jnp.where(kind == 0, number, result)), None

        columns = (jnp.arange(graph.kind.shape[1]), *(x.T for x in graph[:4]), off, omitted)
        return jax.lax.scan(one, jnp.zeros_like(graph.kind), columns)[0]

    def _right_steps(self, graph: _Graph) -> jax.Array:
        """Write the right step of every quantity, then again with the operands of sums exchanged, ``[P, 2 Q, W]``."""
        values, of = self._values(graph), jnp.broadcast_to(jnp.arange(graph.kind.shape[1]), graph.kind.shape)
        commutes = graph.kind == 4
        swapped = graph._replace(a=jnp.where(commutes, graph.b, graph.a), b=jnp.where(commutes, graph.a, graph.b))
        text = jnp.concatenate(
            [_write(self.names, each, _STEPS, graph.kind, of, values) for each in (graph, swapped)], axis=1
        )
        text = jnp.where(jnp.tile(graph.present, (1, 2))[:, :, None], text, 0)
        return characters.pack(text.reshape(-1, text.shape[2]), text.shape[2]).reshape(text.shape)


def _write(
    names: str,
    graph: _Graph,
    templates: tuple[str, ...],
    which: jax.Array,
    of: jax.Array,
    values: jax.Array | None = None,
) -> jax.Array:
    """Write templates about quantities: code points ``[P, N, W]``, with gaps.

    Args:
      names: of quantities, a key of ``_NAMES``.
      graph: the quantities.
      templates: texts in which capital letters stand for the fields of ``_WIDTHS``.
      which: ``[P, N]``, the template.
      of: ``[P, N]``, the quantity.
      values: ``[P, Q]`` of the quantities; None: the templates have none.
    """
    a, b, number, name = (jnp.take_along_axis(x, of, axis=1) for x in (graph.a, graph.b, graph.number, graph.name))
    table, times = characters.words(_NAMES[names]), characters.words(_TIMES)
    table = jnp.pad(table, ((0, 0), (0, _WIDTHS["X"] - table.shape[1])))
    fields = [table[name], *(table[jnp.take_along_axis(graph.name, x, axis=1)] for x in (a, b))]
    fields.append(characters.decimal(number, 2))
    fields.append(times[jnp.clip(number - 2, 0, len(_TIMES) - 1)])
    if values is not None:
        fields += [characters.decimal(jnp.take_along_axis(values, x, axis=1), 2) for x in (a, b, of)]
    template = jnp.asarray(_table(templates))[which]
    field = jnp.take_along_axis(jnp.concatenate(fields, axis=2), jnp.maximum(-1 - template, 0), axis=2)
    return jnp.where(template < 0, field, template)


reasoning = constructors.of(Reasoning)
