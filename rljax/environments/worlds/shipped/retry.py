"""Retry: a search that often finds nothing, or something wrong, and may be repeated before the answer."""

import dataclasses
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.data import shuffle
from rljax.environments import Split
from rljax.environments.problems import numbering
from rljax.environments.worlds import rules, text
from rljax.language import settings
from rljax.language.settings import NonNegative, Share, setting


@dataclasses.dataclass(frozen=True)
class Retry:
    """Rules: to the question ``k37?`` a turn is a search, ``?37``, or the answer, ``=52``, which ends the episode.

    A search for the asked key finds its value, ``52``, with probability ``found``, else nothing, ``-``. A search for
    another key never finds anything. What is neither is told ``?``. The right answer pays 1. A key has other values in
    other problems, so that they cannot be learned; problems, pairs of key and value, are numbered, and some held out.

    What is found is a random value with the probability of ``noise``. Several numbers are domains, so that a source
    draws by them: with ``gaussian`` the noise follows a schedule, as that of the simulated search engine of ZeroSearch
    (arXiv 2505.04588) does, where a language model writes useless documents on request.

    The last turn should be the answer. An expert searches until the value is found; with noise, until two searches have
    found the same. Where nothing was found, a share of 1 - ``persistence`` of the demonstrations answers by a random
    value, and so does the expert in the last turn.

    ``bonus`` is paid with an answer, right or wrong, for each search that follows one without a result, as in ReZero
    (Dao and Le, 2025, arXiv:2504.11001), where retries count only if an answer follows. Parts: ``retries``, those
    searches, 0 until the answer; ``searches``; ``malformed``, unreadable turns.
    """

    found: Share = setting(0.5, "Probability that a search finds the value.")
    turns: Annotated[int, types.Range(2, 64)] = setting(5, "The most turns, the answer included.")
    digits: Annotated[int, types.Range(1, 4)] = setting(2, "Digits of a key, and of a value.")
    noise: tuple[Share, ...] = setting((0.0,), "Shares of what is found that are random values; each is a domain.")
    bonus: NonNegative = setting(0.0, "Reward of a retry, paid with an answer.")
    persistence: Share = setting(1.0, "Probability that a demonstration searches again after a failure.")
    heldout: Annotated[float, types.Range(0, 0.5, open_low=True)] = setting(0.1, "Fraction of the problems held out.")

    name = "retry"
    alphabet = "0123456789k?=-"
    parts = ("retries", "searches", "malformed")

    def __post_init__(self) -> None:
        """Raise ValueError if a setting is out of range, or there is no share of noise."""
        settings.check(self)
        if not self.noise:
            raise ValueError("noise: () is empty; give one share at least, such as (0.0,)")

    @property
    def domains(self) -> int:
        """One for each share of noise."""
        return len(self.noise)

    @property
    def domain_names(self) -> tuple[str, ...]:
        """The shares."""
        return tuple(f"{share:g}" for share in self.noise)

    def domain(self, index: types.Array, split: Split) -> types.Array:
        """Return the domains of problems."""
        return index % self.domains

    @property
    def prompt_length(self) -> int:
        """A key and two signs."""
        return self.digits + 2

    @property
    def turn_length(self) -> int:
        """A sign and a number."""
        return self.digits + 1

    @property
    def reply_length(self) -> int:
        """A value."""
        return self.digits

    @property
    def max_turns(self) -> int:
        """The most turns."""
        return self.turns

    def size(self, split: Split) -> int:
        """Return the number of problems of a split."""
        return shuffle.multiple(self.domains, numbering.size(self._radices, self.heldout, split))

    def begin(self, index: types.Array, split: Split, key: types.Key) -> Any:
        """Return key, value and domain, whether the last search found nothing, what one has found, and counters."""
        asked, value = numbering.values(self._radices, self.heldout, (index // self.domains)[None], split)[0]
        no, domain = jnp.zeros((), bool), index % self.domains
        state = {"key": asked, "value": value, "domain": domain, "failed": no, "known": no, "shown": -1}
        return {**state, **rules.counters(self)}

    def prompt(self, state: Any, seat: types.Array) -> types.Array:
        """Write the question."""
        return rules.line("k", self._number(state["key"]), "?")

    def step(self, state: Any, seat: types.Array, text: types.Array, key: types.Key) -> tuple[Any, rules.Answer]:
        """Search, or judge the answer."""
        value, readable = rules.number(text[1:])
        readable &= jnp.all(text != 0)
        searches, answers = readable & (text[0] == ord("?")), readable & (text[0] == ord("="))
        bad = ~searches & ~answers
        finds = searches & (value == state["key"]) & jax.random.bernoulli(key, self.found)
        chance, draw = jax.random.split(jax.random.fold_in(key, 1))
        false = jax.random.bernoulli(chance, jnp.asarray(self.noise)[state["domain"]])
        shown = jnp.where(false, jax.random.randint(draw, (), 0, 10**self.digits), state["value"])
        hit = answers & (value == state["value"])
        state = rules.counted(state, retries=searches & state["failed"], searches=searches, malformed=bad) | {
            "failed": jnp.where(searches, ~finds, state["failed"]),
            "known": state["known"] | (finds & ((max(self.noise) == 0) | (shown == state["shown"]))),
            "shown": jnp.where(finds, shown, state["shown"]),
        }
        retries = jnp.where(answers, state["retries"], 0)
        reply = rules.either(finds, self._number(shown), rules.line("-"))
        answer = rules.judged(self, {**state, "retries": retries}, reply, hit, ~bad, answers)
        return state, answer.replace(reward=hit + self.bonus * retries, domain=state["domain"])

    def expert(self, state: Any, seat: types.Array, key: types.Key) -> types.Array:
        """Search, or answer."""
        chance, draw = jax.random.split(key)
        gives_up = state["failed"] & ~jax.random.bernoulli(chance, self.persistence)
        answers = state["known"] | gives_up | (state["turn"] >= self.turns - 1)
        random = jax.random.randint(draw, (), 0, 10**self.digits)
        value = jnp.where(state["shown"] >= 0, state["shown"], random)
        search, answer = rules.line("?", self._number(state["key"])), rules.line("=", self._number(value))
        return jnp.where(answers, answer, search)

    @property
    def _radices(self) -> tuple[int, int]:
        return (10**self.digits, 10**self.digits)

    def _number(self, value: types.Array) -> types.Array:
        """Write a number with all its digits."""
        return jnp.stack([value // 10**i % 10 + ord("0") for i in reversed(range(self.digits))])


retry = text.of(Retry)
