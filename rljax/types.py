"""Records and kinds: all types of the mathematics, on one page.

Dimension key, used in every shape comment of this project:
    P  prompts in a batch             G  samples of one prompt
    B  rows (P * G by default)        T  completion tokens
    L  prompt tokens (left-padded)    S  positions, L + T
    V  vocabulary   D  width          H  heads   K  head size   N  layers

All logarithms are natural; every loss is minimized; a mask is 1 where something counts. Temperature is never ``T``.
"""

import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import flax.struct
import jax

from rljax.language import fields
from rljax.language.outline import outline
from rljax.language.ranges import *  # noqa: F403  what arguments of pieces may be

Array = jax.Array
Key = jax.Array
Tree = Any
State = Any
Metrics = Mapping[str, Array]


class Outcome(enum.IntEnum):
    """The verifier's verdict. After a crash or a timeout the row is invalid, not wrong; unjudged is not correct."""

    WRONG = 0
    CORRECT = 1
    UNPARSEABLE = 2
    TIMED_OUT = 3
    CRASHED = 4
    UNJUDGED = 5  # a reward that does not say whether the answer is correct


class Finish(enum.IntEnum):
    """Why a completion ended."""

    LENGTH = 0
    STOP = 1
    UNFINISHED = 2  # it has not ended: the row is carried over to the next step


class Context(flax.struct.PyTreeNode):
    """The prompt, left-padded. Opaque to the mathematics."""

    token: Array  # [B, L] int32, the prompt the row was sampled under
    mask: Array  # [B, L] float32, 1 on real prompt tokens
    train_token: Array | None = None  # [B, L] the prompt it is trained under, where it differs
    train_mask: Array | None = None  # [B, L]
    image: Array | None = None  # [B, N, H, W, 3] uint8, the pictures of its placeholder tokens, of both prompts

    @property
    def training(self) -> tuple[Array, Array]:
        """Token and mask [B, L] of the prompt the row is trained under."""
        token = self.token if self.train_token is None else self.train_token
        return token, self.mask if self.train_mask is None else self.train_mask


class Action(flax.struct.PyTreeNode):
    """The completion, right-padded. Opaque to the mathematics."""

    token: Array  # [B, T] int32
    kept: Array | None = None  # [B, T, ceil(V / 32)] uint32, bit v % 32 of word v // 32: was v in the sampled support
    length: Array | None = None  # [B] int32, positions in use, replies of a world included; None: up to the last mask 1
    state: Tree | None = None  # [B, ...] of an unfinished conversation, which a later step continues


class Rollout(flax.struct.PyTreeNode):
    """A batch of rows with everything known about them before the loss; no gradient. An absent field is None."""

    mask: Array  # [B, T] float32, 1 on tokens the policy itself emitted
    reward: Array  # [B] float32, the verifier's number
    group: Array  # [B] int32, rows that share a prompt share it; any integers, any group size
    context: Context | None = None
    action: Action | None = None
    motion: Tree | None = None  # of rows of a control world, which have no tokens: ``models.actors.Motion``

    # per token, [B, T]
    behaviour_logp: Array | None = None  # under the distribution the sampler drew from
    raw_logp: Array | None = None  # at sampling, tempered but unfiltered
    entropy: Array | None = None  # at sampling, nats, of the unfiltered distribution
    square_prob: Array | None = None  # at sampling, sum over v of p_v^2 of the unfiltered distribution
    version: Array | None = None  # int32, the policy version (update count) that wrote the token
    turn: Array | None = None  # int32, turn of the conversation, from 0
    token_reward: Array | None = None  # reward paid at a token, beside the row's
    advantage: Array | None = None
    value: Array | None = None  # critic's estimate before the token is emitted
    returns: Array | None = None  # the critic's regression target
    ref_logp: Array | None = None  # reference, unfiltered
    proximal_logp: Array | None = None  # policy at the start of the update

    # per row, [B]
    parts: dict[str, Array] = dataclasses.field(default_factory=dict)  # named numbers of the verifier
    outcome: Array | None = None  # int32, an Outcome
    valid: Array | None = None  # float32, 0 where the row must not count at all
    episode: Array | None = None  # int32, rows of one episode share it
    agent: Array | None = None  # int32, role
    domain: Array | None = None  # int32, task or data source
    on_policy: Array | None = None  # float32, 0 for rows another policy or a person wrote
    finish: Array | None = None  # int32, a Finish
    index: Array | None = None  # int32, the prompt's index in its task
    scores: dict[str, "Scores"] = dataclasses.field(default_factory=dict)  # of other modules, by name; ``Needs.scores``

    # written by prepare transforms on the whole minibatch
    coefficient: dict[str, Array] = dataclasses.field(default_factory=dict)  # [B, T] by term; "common" for the rest
    extra: dict[str, Array] = dataclasses.field(default_factory=dict)  # [B, ...] named by who reads or writes them
    __repr__ = outline


class Scores(flax.struct.PyTreeNode):
    """The model's scores of the rows, differentiable. ``Needs`` names the fields that are computed beyond ``logp``."""

    # under the distribution sampled (tempered; filtered when re-scored so), nats
    logp: Array | None = fields.score("the log-probs of the tokens", module="policy")
    raw_logp: Array | None = fields.score("the same, tempered and unfiltered")  # None where it equals logp
    entropy: Array | None = fields.score("the live entropy of every token")  # nats, unfiltered
    square_prob: Array | None = fields.score("the sum of squared probabilities at every token")
    log_normaliser: Array | None = fields.score("the logsumexp of the logits at every token")
    divergence: dict[str, Array] = dataclasses.field(default_factory=dict)  # [B, T] exact, against the reference
    value: Array | None = fields.score("the values of a critic", at="before", module="value")
    value_logits: Array | None = fields.score("a critic's distribution", ("B", "T", ...), at="before", module="value")
    reward: Array | None = fields.score("the scores of a reward model", ("B",), at="end", module="other")
    top: tuple[Array, Array] | None = None  # [B, T, k] int32, most probable first; [B, T, k + 1] theirs, and the rest's
    after_logp: Array | None = fields.score("the log-probs of the solution behind the row", ("B", ...))  # nats
    after_mask: Array | None = fields.score("where this solution is", ("B", ...))
    heads: dict[str, "Scores"] = dataclasses.field(default_factory=dict)  # of heads on the same trunk, by module
    # the logit that a step which ends here is right
    process: Array | None = fields.score("the scores of tokens by a process reward model", at="after", module="other")


SCORES = fields.scores(Scores)  # the row of each field that is an array


class Loss(flax.struct.PyTreeNode):
    """What a loss chain computes: named per-token terms, not yet reduced."""

    log_ratio: Array | None = None  # [B, T], written by the ratio seam
    proximal_logp: Array | None = None  # [B, T], where the ratio seam puts another in place of the rollout's
    terms: dict[str, Array] = dataclasses.field(default_factory=dict)  # [B, T] each
    metrics: dict[str, Array] = dataclasses.field(default_factory=dict)  # [B, T] each, averaged over the mask


class Prompts(flax.struct.PyTreeNode):
    """A batch of prompts, left-padded to the task's prompt length."""

    token: Array  # [P, L] int32
    mask: Array  # [P, L] float32
    index: Array  # [P] int32, index in the task's split
    image: Array | None = None  # [P, N, H, W, 3] uint8, the pictures of its placeholder tokens, in order
    training: tuple[Array, Array] | None = None  # token and mask [P, L] that rows are trained under, where others

    @property
    def context(self) -> Context:
        """The prompts as rows have them."""
        return Context(self.token, self.mask, *(self.training or (None, None)), self.image)

    @classmethod
    def of(cls, world: Any, state: Any, seat: Array) -> "Prompts":
        """Return what a seat reads in a state of a world, with the pictures if it shows some: one prompt."""
        token, mask = world.prompt(state, seat)
        image = None if getattr(world, "pictures", None) is None else world.picture(state, seat)
        plain = getattr(world, "training", None)
        return cls(token, mask, jax.numpy.int32(0), image, plain and plain(state, seat))


class Choice(flax.struct.PyTreeNode):
    """The prompts of a step. The rows of a prompt are adjacent."""

    index: Array  # [P] int32, in the training split
    samples: Array | None = None  # [P] int32, rows of each, B in all; 0: an unused place. None: equal numbers


class Edit(flax.struct.PyTreeNode):
    """The prompts of a second pass."""

    row: Array  # [n] int32, the row of the first pass that each comes from
    used: Array  # [n] bool
    token: Array  # [n, L'] int32, left-padded
    mask: Array  # [n, L'] float32
    head: Action | None = None  # the tokens that each completion begins with


class Verdict(flax.struct.PyTreeNode):
    """A verifier's answer for each row."""

    reward: Array  # [B] float32
    outcome: Array  # [B] int32, an Outcome
    parts: dict[str, Array] = dataclasses.field(default_factory=dict)  # [B] float32 each
    token_reward: Array | None = None  # [B, T] float32, paid at tokens beside the row's reward
    domain: Array | None = None  # [B] int32, Rollout.domain


class TrainState(flax.struct.PyTreeNode):
    """The state of a run, besides its config and the root key derived from its seed. All of it is checkpointed."""

    step: Array  # int32, updates finished
    cursor: Array  # [tasks of the run] int32, training prompts used so far of each task: the run's position
    params: dict[str, Tree]  # by module: the policy, and what the phase trains
    opt_state: tuple[Tree, ...]  # one for each objective
    algorithm: Tree  # states of the algorithm's pieces
    reference: Tree | None  # the trained part of the reference policy's parameters, if an algorithm needs one
    pool: Tree  # the source's rows in flight
    skipped: Array  # int32, non-finite updates skipped since the last finite one
    skipped_total: Array  # int32
    snapshot: Tree | None = None  # the trained part of an earlier policy: a seat of a world, or one step before
    frozen: dict[str, Tree] = dataclasses.field(default_factory=dict)  # by module: what the phase only reads
    ahead: tuple[Any, ...] = ()  # in a checkpoint: rollouts of the next steps, or the states they are sampled from
    __repr__ = outline


Whole = Literal["row", "episode", "group"]  # each contains the one before


@dataclasses.dataclass(frozen=True)
class Needs:
    """What a piece needs from the machinery. The needs of a chain are the union of the needs of its pieces."""

    entropy: bool = False
    square_prob: bool = False
    log_normaliser: bool = False
    divergence: frozenset[str] = frozenset()  # names of exact divergences, see ops.DIVERGENCES
    parts: frozenset[str] = frozenset()  # names of Rollout.parts
    extra: frozenset[str] = frozenset()  # names of Rollout.extra that no piece of the algorithm writes
    value: bool = False  # of the module "value" in a rollout, of the objective's module in a loss
    value_logits: frozenset[tuple[float, float, int]] = frozenset()  # first and last center, number of bins
    reward: bool = False  # Scores.reward of the objective's module
    top: frozenset[int] = frozenset()  # numbers of most probable tokens: the largest is the number in Scores.top
    process: bool = False  # Scores.process of the objective's module
    scores: frozenset[tuple[str, str]] = frozenset()  # (module, field of Scores) that a piece reads in Rollout.scores
    token_reward: bool = False  # Rollout.token_reward, paid by the source
    off_policy: bool = False  # rows that the policy did not sample, Rollout.on_policy 0
    reference: bool = False  # Rollout.ref_logp
    behaviour: bool = False  # Rollout.behaviour_logp
    proximal: bool = False  # Rollout.proximal_logp when there is more than one gradient step
    fixed_proximal: bool = False  # Rollout.proximal_logp always: a statistic of the whole minibatch reads it
    live: bool = False  # a prepare transform reads scores of the whole minibatch
    siblings: bool = False  # groups of at least two rows
    turns: bool = False  # Rollout.turn, more than one in a row
    agents: bool = False  # Rollout.agent, more than one in a batch
    episodes: bool = False  # Rollout.episode, of several rows each
    domains: bool = False  # Rollout.domain, more than one in a batch
    whole: Whole = "row"  # what the splitter may not cut
    moves: frozenset[str] = frozenset()  # of a ratio: what takes it from 1, "steps", "sampler" or "always"
    follows: bool = False  # of an after-update piece: the reference is the policy at the start of every step
    idle: frozenset[tuple[str, ...]] = frozenset()  # (call, *causes): without effect, see transforms.frame.idle

    @property
    def requested(self) -> tuple[str, ...]:
        """Names of ``SCORES`` that are asked for."""
        return tuple(name for name in SCORES if getattr(self, name, None))

    def __or__(self, other: "Needs") -> "Needs":
        union = {name: x | getattr(other, name) for name, x in vars(self).items() if name != "whole"}
        return Needs(**union, whole=max(self.whole, other.whole, key=lambda whole: get_args(Whole).index(whole)))


@dataclasses.dataclass(frozen=True)
class Transform:
    """What the kinds share. Not a kind itself: use one of the four below.

    ``init()`` returns the piece's state; ``observe(state, metrics)`` updates it once after each step. ``seam`` is the
    module that holds the piece, ``spec`` the call with all arguments; both are written by ``transforms.define``.
    """

    apply: Callable[..., Any]
    init: Callable[[], State] = tuple
    observe: Callable[[State, Metrics], State] = lambda state, metrics: state
    needs: Needs = Needs()
    seam: str = ""
    spec: str = ""


@dataclasses.dataclass(frozen=True)
class RolloutTransform(Transform):
    """On the whole batch, no gradient: ``apply(rollout, state, key) -> (rollout, state)``."""


@dataclasses.dataclass(frozen=True)
class PrepareTransform(Transform):
    """On the whole minibatch, under stop-gradient: ``apply(rollout, scores, state, key) -> (rollout, state)``.

    ``scores`` is None unless some piece of the objective sets ``needs.live``.
    """


@dataclasses.dataclass(frozen=True)
class LossTransform(Transform):
    """On any micro-batch: ``apply(loss, rollout, scores, state, key) -> loss``."""

    statistics: tuple[PrepareTransform, ...] = ()  # of the minibatch: what the piece reads, or its own reduction


@dataclasses.dataclass(frozen=True)
class AfterTransform(Transform):
    """After the update: ``apply(reference, params, metrics, state, key) -> (reference, state)``."""


@dataclasses.dataclass(frozen=True)
class Controller:
    """A schedule, or a coefficient that follows a metric; it may be used wherever a piece takes a number.

    ``value(state)`` is read at every use; ``update(state, metrics)`` runs once after each step.
    """

    init: Callable[[], State]
    value: Callable[[State], Array]
    update: Callable[[State, Metrics], State]
    spec: str = ""


@dataclasses.dataclass(frozen=True)
class Problems:
    """The training prompts of a task, as a source sees them."""

    size: int
    domains: int
    domain: Callable[[Array], Array]  # index [n] -> domain [n] int32, traceable
    encode: Callable[[str], list[int]]
    shuffled: Callable[[Array], Array]  # a permutation of the indices, the same in the whole run
    rows: int = 1  # of an episode, which are adjacent in a batch
    parameters: Callable[[Array], Array] | None = None  # index [n] -> [n, K] float32 in [0, 1], traceable


@dataclasses.dataclass(frozen=True)
class Again:
    """A second pass: edited prompts, sampled after the first pass has been scored; see ``transforms.source``."""

    edit: Callable[..., Edit]  # (pool, problems, rollout, solutions [B, T], count, key)
    merge: Callable[[Rollout, Rollout, Edit], Rollout]  # (first pass, second pass [count * samples], edit)
    share: float = 1.0  # count is this share of the step's prompts, or of its rows
    by: Literal["prompt", "row"] = "prompt"
    samples: int = 0  # rows of each; 0: as many as in the first pass
    module: str = "policy"  # that samples the rows
    longer: Callable[[Problems, int, int], int] = lambda problems, prompt, completion: 0  # most tokens added, by L, T
    plain: bool = False  # the rows are trained under the prompt of the first pass
    sampled: bool = True  # else each head is a whole completion, which the policy scores
    look: Callable[..., Array] | None = None  # (problems, rollout, attention): extra["attention"] of the first pass


@dataclasses.dataclass(frozen=True)
class Source:
    """Where rows come from: one piece, or a chain of them. ``transforms.source`` says what each function does."""

    origin: Literal["policy", "demonstrations", "stored"] = "policy"
    demonstrated: int = 0  # of each prompt's samples, how many are the task's demonstrations instead
    off_policy: bool = False  # some rows were not sampled by the policy
    supplies: frozenset[str] = frozenset()  # names of ``Needs`` such as "turns", of ``extra`` and ``parts``
    oversample: int = 1  # prompts drawn for each prompt kept
    segment: int = 0  # the most tokens that a step adds to a row; 0: rows are sampled whole
    early: int = 0  # a segment ends as soon as 1 / early of the groups have ended; 0: it does not
    uneven: bool = False  # ``choose`` gives unequal samples
    by_prompt: bool = False  # ``select`` acts on prompts that come again
    stores: bool = False  # ``select`` returns whole groups of earlier steps, before the advantages
    flat: bool = False  # ``select`` acts on groups without spread
    grouped: bool = True  # ``select`` returns whole groups; else it runs after the advantages, on single rows
    solutions: bool = False  # ``head`` or ``again`` reads a demonstration of each prompt
    init: Callable[[Rollout, Problems], Tree] = lambda rollout, problems: ()
    choose: Callable[[Tree, Problems, Array, Key], Choice] | None = None  # these three read the sampler's pool
    head: Callable[[Tree, Problems, Rollout, Action, Key], Action] | None = None
    again: Again | None = None
    select: Callable[[Rollout, Tree, int, Key], tuple[Rollout, Tree]] = lambda rows, pool, count, key: (rows, pool)
    observe: Callable[[Tree, Metrics], Tree] = lambda state, metrics: state
    relabel: Callable[..., Rollout] | None = None  # (chosen rows, task, key): rows with other goals
    in_flight: Callable[[Tree], Tree] = lambda pool: pool  # {"rows", "free"} of a source with segments
    renew: Callable[[Tree], Tree] = lambda pool: pool  # at the start of a phase that carries the pool over
    seam: str = ""
    spec: str = ""


@dataclasses.dataclass(frozen=True)
class Objective:
    """One loss on one module. None means the run's setting (``config.learner``)."""

    loss: tuple[LossTransform, ...]
    reduce: PrepareTransform
    prepare: tuple[PrepareTransform, ...] = ()
    module: str = "policy"  # "value", or another name of config.module
    epochs: int | None = None
    minibatches: int | None = None
    optimizer: str | None = None  # a call such as "adam(learning_rate=1e-4)"
    every: int = 1  # runs on steps divisible by it


@dataclasses.dataclass(frozen=True)
class Algorithm:
    """A published method: a source, rollout transforms, objectives, and what follows the update."""

    objectives: tuple[Objective, ...]
    transforms: tuple[RolloutTransform, ...] = ()
    source: Source = Source()
    after: tuple[AfterTransform, ...] = ()
    spec: str = ""
