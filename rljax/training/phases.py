"""Phases: one algorithm for a number of steps, and everything that its step is compiled for."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import optax

from rljax import environments, models, sampling, types
from rljax.algorithms import inputs, interpreter
from rljax.data import stored_groups, stored_steps
from rljax.environments import traits, worlds
from rljax.models import actors, adapters
from rljax.models.config import READING, Module, ModuleConfig
from rljax.models.scores import packing, scoring
from rljax.sampling import players as players_lib
from rljax.training import readings
from rljax.training.config import Config, LearnerConfig, PhaseConfig
from rljax.transforms import modules, ops, trajectories

PLAYERS = "policy", "snapshot"  # that are no modules

_PLAIN = ModuleConfig()
_HEAD = "scalar"  # the parameter of a head that is a number at each position
_LOGITS = "log_normaliser"  # with log-probs, the logits: Q of a critic of actions
_OUTPUTS = (_HEAD, "unembedding")  # parameters of a network that a head on its trunk does not read


@dataclasses.dataclass(frozen=True)
class Phase:
    """A phase with its names resolved; it runs the updates ``first`` < step <= ``last``."""

    name: str
    first: int
    last: int
    start: PhaseConfig  # the fields of the phase alone
    settings: Config  # the run's, with the changes of the phase
    algorithm: types.Algorithm
    optimizers: tuple[optax.GradientTransformation, ...]  # one for each objective
    task: environments.Task  # before it is bound to a tokenizer
    module: Mapping[str, Module] = dataclasses.field(default_factory=dict)  # of the config, beside the policy
    warnings: tuple[str, ...] = ()  # what the user set without effect
    notes: tuple[str, ...] = ()  # what the recipe has by default without effect

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules that the algorithm uses, their trunks and what they follow: "policy", "value" if used, others."""
        used = {*self.trained, *self.read, *self.teachers, *self.writers, "policy"}
        used |= {*("value",) * interpreter.needs(self.algorithm).value}
        while more := {name for m in used for name in (self.of(m).trunk, self.of(m).follows) if name} - used:
            used |= more
        return ("policy", *sorted(used - {"policy"}, key=lambda name: (name != "value", name)))

    @property
    def writers(self) -> tuple[str, ...]:
        """The modules beside the policy that sample rows: those that play a seat, and that of a second pass."""
        source = self.algorithm.source
        played = source.origin == "policy" and not traits.traits(self.task).whole
        seated = [name for name in self.settings.world.players if name not in PLAYERS] if played else []
        again = [source.again.module] if source.again is not None and source.again.module != "policy" else []
        return players_lib.distinct([*seated, *again])

    def of(self, module: str) -> ModuleConfig:
        """Return the settings of a module; the defaults for the policy."""
        return self.module[module].settings if module in self.module else _PLAIN

    @property
    def joint(self) -> tuple[tuple[int, ...], ...]:
        """The objectives of each sequence of gradient steps, by number: one objective, or a trunk's and its heads'.

        A head whose gradient enters its trunk is trained with it, where the phase trains the trunk.
        """
        first = {o.module: number for number, o in reversed([*enumerate(self.algorithm.objectives)])}
        leads = {}
        for number, o in enumerate(self.algorithm.objectives):
            head = self.of(o.module)
            leads[number] = number if head.stop_trunk else first.get(head.trunk, number)
        return tuple((n, *(m for m in leads if m != n == leads[m])) for n in leads if n == leads[n])

    @property
    def trained(self) -> frozenset[str]:
        """The modules that an objective trains."""
        return frozenset(o.module for o in self.algorithm.objectives)

    @property
    def edited(self) -> bool:
        """Whether rows of a group may be trained under several prompts."""
        source = self.algorithm.source
        return source.relabel is not None or (source.again is not None and not source.again.plain)

    @property
    def read(self) -> dict[str, types.Needs]:
        """What the pieces read in ``Rollout.scores``, by module."""
        wanted: dict[str, types.Needs] = {}
        for module, field in sorted(interpreter.needs(self.algorithm).scores):
            wanted[module] = wanted.get(module, types.Needs()) | modules.asked(field)
        return wanted

    @property
    def implicit(self) -> frozenset[str]:
        """The modules that a piece trains, or pays by, as log-ratios to the reference."""
        trained = {o.module for o in self.algorithm.objectives if interpreter.objective_needs(o).reference}
        pays = [p.needs for p in self.algorithm.transforms if p.needs.reference]
        read = {name for needs in pays for name, field in needs.scores if field == "logp"}
        return frozenset(trained | read) - {"policy", *self.writers}

    @property
    def implies(self) -> bool:
        """Whether an objective compares the policy with the reference, so that it implies rewards."""
        return any(o.module == "policy" and interpreter.objective_needs(o).reference for o in self.algorithm.objectives)

    @property
    def teachers(self) -> tuple[str, ...]:
        """The modules that the policy has a divergence from, over the vocabulary."""
        return tuple(sorted(modules.compared(interpreter.needs(self.algorithm)) - {modules.REFERENCE}))

    def reading(self, module: str) -> ModuleConfig:
        """Return the settings that say what a module reads: its own, or else of the module that it follows."""
        settings = self.of(module)
        follows = settings.follows and not any(getattr(settings, field) for field in READING)
        return self.of(settings.follows) if follows else settings

    def fields(self, module: str) -> frozenset[str]:
        """Return the fields of ``types.Scores`` of a module that the algorithm uses; "logp" for its distribution."""
        needs = interpreter.needs(self.algorithm)
        used = {field for name, field in needs.scores if name == module}
        used |= {*(_LOGITS,) * (module in modules.critics(needs))}
        used |= {*("logp",) * (module in (*self.teachers, *self.writers))}
        used |= {*("value",) * (module == "value" and needs.value)}
        for o in self.algorithm.objectives:
            if o.module == module:
                needs = interpreter.objective_needs(o)
                used |= {x for x in needs.requested if types.SCORES[x].at or x == _LOGITS} or {"logp"}
        return frozenset(used)

    def heads(self, module: str) -> frozenset[str]:
        """Return the heads of a module that the algorithm uses: "scalar" for values and rewards, "logits"."""
        words = self.reading(module).words  # the reward is then in their logits
        numbers = {field for field, row in types.SCORES.items() if row.at and not (words and row.at == "end")}
        return frozenset("scalar" if field in numbers else "logits" for field in self.fields(module))

    def bins(self, module: str) -> frozenset[tuple[float, float, int]]:
        """Return the bins of the values that the algorithm trains a module for; empty: plain numbers."""
        objectives = [interpreter.objective_needs(o) for o in self.algorithm.objectives if o.module == module]
        return frozenset().union(*(needs.value_logits for needs in objectives))


@dataclasses.dataclass(frozen=True)
class Setup:
    """A phase on devices: everything that its step is compiled for. Sizes are per step."""

    phase: Phase
    task: environments.Task  # bound to the tokenizer
    networks: Mapping[str, models.Model]  # by module; "policy" is always present; of a control world ``actors.Actor``
    decoder: models.Model  # the policy, sharded for rollouts
    ends: sampling.Ends
    mesh: jax.sharding.Mesh
    cursor: int = 0  # index of the task's cursor in ``TrainState.cursor``
    cursors: int = 1  # number of tasks and stored files in the run
    stored: stored_groups.Groups | stored_steps.Steps | None = None  # of a source that reads files
    reads: Mapping[str, readings.Reading] = dataclasses.field(default_factory=dict)  # by module, where it has one

    @property
    def settings(self) -> Config:
        """The settings of the phase."""
        return self.phase.settings

    @property
    def learner(self) -> LearnerConfig:
        """How the update goes over the rows."""
        return self.settings.learner

    @property
    def algorithm(self) -> types.Algorithm:
        """The algorithm of the phase."""
        return self.phase.algorithm

    @property
    def prompts(self) -> int:
        """Prompts that a step trains on."""
        return self.settings.batch.prompts

    @property
    def drawn(self) -> int:
        """Prompts that a step draws, of which the source may select some."""
        return self.prompts * self.algorithm.source.oversample

    @property
    def world(self) -> worlds.World | None:
        """The task, if it is a world that runs inside the program."""
        return self.task if worlds.in_turns(self.task) else None

    @property
    def snapshot(self) -> bool:
        """Whether a seat is played by an earlier policy."""
        return "snapshot" in self.players

    @property
    def players(self) -> tuple[str, ...]:
        """Who plays the seats of a world, each once; the policy alone if the task has one turn."""
        return ("policy",) if traits.traits(self.task).whole else players_lib.distinct(self.settings.world.players)

    def writer(self, player: str) -> Any:
        """Return the network that a player writes with: the decoder, unless it is a module of another network."""
        network = self.networks["policy" if player in PLAYERS else player]
        same = network.architecture == self.networks["policy"].architecture
        return self.decoder if same else network

    def written(self, module: str, rows: types.Rollout) -> types.Rollout:
        """Return the rows that a module is trained on: of several players, those that it wrote.

        A module that plays no seat, such as a critic, is trained on the rows of all of them.
        """
        if not self.settings.world.trained or module not in self.players or "player" not in rows.extra:
            return rows
        return trajectories.only(rows, ops.extra(rows, "player") == self.players.index(module))

    @property
    def precedent(self) -> bool:
        """Whether the algorithm reads log-probs of the policy one step earlier, which is then the snapshot."""
        return inputs.PRECEDENT in interpreter.needs(self.algorithm).extra

    @property
    def apart(self) -> bool:
        """Whether rows are sampled ahead of updates, in parts, or on other devices, so that no program does both."""
        run, devices = self.settings.run, self.settings.mesh.rollout
        return self.algorithm.source.origin == "policy" and bool(run.lag or run.overlap or devices)

    @property
    def overlapped(self) -> bool:
        """Whether rows arrive in parts, a micro-batch each."""
        return self.apart and self.settings.run.overlap

    @property
    def rows_of_episode(self) -> int:
        """Rows of one episode: a conversation for each seat, or a chapter for each turn."""
        return traits.traits(self.task).rows_of_episode

    @property
    def samples(self) -> int:
        """Rows of each prompt."""
        return self.settings.batch.samples * self.rows_of_episode

    @property
    def rows(self) -> int:
        """Rows that a step trains on."""
        return self.prompts * self.samples

    @property
    def size(self) -> int:
        """Prompts that are drawn from: the training split, or the stored groups."""
        return self.task.size("train") if self.stored is None else len(self.stored)

    @property
    def solutions(self) -> int:
        """Demonstrations of each prompt that the source reads."""
        source = self.algorithm.source
        return self.samples if source.demonstrated else int(source.solutions)

    @property
    def logged(self) -> int:
        """Rows of a step that are returned with its metrics: ``log.rollout_rows``, rounded up to whole groups."""
        return min(self.rows, -(-self.settings.log.rollout_rows // self.samples) * self.samples)

    @property
    def temperature(self) -> float:
        """Temperature of all log-probs; 1 for demonstrations and for stored rows that the policy has not written."""
        written = self.stored is not None and self.stored.version is not None
        return self.settings.sampler.temperature if written or self.algorithm.source.origin == "policy" else 1.0

    def verify(
        self, index: types.Array, split: environments.Split, token: types.Array, mask: types.Array
    ) -> types.Verdict:
        """Judge completions by the verifier of a device task, whatever ended them.

        Args:
          index: ``[B]`` int32, the prompt of each completion.
          split: of the prompts.
          token: ``[B, T]`` int32.
          mask: ``[B, T]``, above 0 on the tokens that the policy emitted.

        Returns:
          A verdict of B rows.
        """
        task: Any = self.task  # a device task of one turn, which has a verifier
        return task.verify(index, split, *self.ends.closed(token, mask))

    def shared(self, rows: int) -> int:
        """Return how many adjacent rows of ``rows`` share a prompt that is computed once; 0: none."""
        source, about = self.algorithm.source, traits.traits(self.task)
        whole = source.origin != "demonstrations" and rows % self.samples == 0 and not source.uneven and source.grouped
        whole &= about.alike and about.actions is None and not self.phase.edited
        return self.samples if self.learner.share_prompt and whole and self.samples > 1 else 0

    def whole(self, trees: Mapping[str, types.Tree], module: str) -> types.Tree:
        """Return the parameters that a module's network reads, from what the state holds for each module.

        The state holds the matrix of a head only; its network shares the other parameters with its trunk.
        """
        trunk = self.phase.of(module).trunk
        rest = {name: x for name, x in trees[trunk].items() if name not in _OUTPUTS} if trunk else {}
        return {**rest, **trees[module]}

    def held(self, module: str, params: types.Tree) -> types.Tree:
        """Return the part of a network's parameters that the state holds for a module; the inverse of ``whole``."""
        return {_HEAD: params[_HEAD]} if self.phase.of(module).trunk else params

    def params(self, state: types.TrainState, module: str) -> types.Tree:
        """Return the parameters that the network of a module reads, which the phase trains or reads."""
        return self.whole({**state.frozen, **state.params}, module)

    @property
    def trained(self) -> frozenset[str]:
        """The modules in ``TrainState.params``: the policy, and those that the phase trains."""
        return frozenset({"policy", *self.phase.trained})

    def part(self, params: Mapping[str, types.Tree], joint: tuple[int, ...]) -> types.Tree:
        """Return the trained parameters of objectives that take gradient steps together, ``Phase.joint``.

        Args:
          params: by module; leaves may be anything.
          joint: numbers of the objectives.

        Returns:
          The trained part of the module's parameters; of several modules, by name.
        """
        named = [self.algorithm.objectives[number].module for number in joint]
        parts = {module: adapters.trained(params[module]) for module in named}
        return parts if len(parts) > 1 else parts[named[0]]

    def continues(self, previous: "Setup") -> bool:
        """Return whether this phase can continue the unfinished rows of the previous one."""

        def rows(setup: "Setup") -> tuple[Any, ...]:
            lengths = setup.task.prompt_length, setup.task.completion_length
            return setup.settings.task, lengths, setup.algorithm.source.spec

        return rows(self) == rows(previous)


def score(
    setup: Setup,
    module: str,
    params: types.Tree,
    rows: types.Rollout,
    needs: types.Needs,
    *,
    kept: bool | None = None,
    reference: types.Tree | None = None,
    teachers: Mapping[str, types.Tree] | None = None,
    heads: Mapping[str, tuple[types.Tree, types.Needs]] | None = None,
    places: packing.Places | None = None,
    split: environments.Split = "train",
    samples: int | None = None,
) -> types.Scores:
    """Score rows with a module, at the temperature of the phase.

    Args:
      setup: the phase on devices.
      module: its name.
      params: the module's parameters.
      rows: B rows of T completion tokens.
      needs: what to compute beyond log-probs.
      kept: whether log-probs are normalized over the sampler's kept set; None: if ``sampler.rescore`` is "kept".
      reference: parameters of the reference policy, for exact divergences.
      teachers: parameters of modules by name, for exact divergences from them.
      heads: parameters and needs of heads on the module's trunk by name, for ``Scores.heads``.
      places: lanes and offsets of packed completions; None: each completion is a row.
      split: of the prompts ``rows.index``, whose solutions some modules read.
      samples: adjacent rows that share a prompt, which is read once; 0: each row is read whole. None: as in a step,
        ``Setup.shared``.

    Returns:
      The scores, ``[B, T]`` float32 each, nats, differentiable in ``params``.
    """
    network: Any = setup.networks[module]
    others: dict[str, Any] = {name: (setup.networks[name], tree) for name, tree in (teachers or {}).items()}
    common = {"temperature": setup.temperature, "reference": reference, "teachers": others}
    if isinstance(network, actors.Actor):
        return network.score(params, rows, needs, **common)
    learner, reading, where = setup.learner, setup.reads.get(module), ()
    if reading is not None:
        rows, *where = readings.read(reading, rows, setup.task, split)
    scores = scoring.score(
        network,
        params,
        rows,
        needs,
        **common,
        kept=setup.settings.sampler.rescore == "kept" if kept is None else kept,
        heads={name: (setup.networks[name], *given) for name, given in (heads or {}).items()},
        vocabulary=learner.vocabulary,
        keep_logits=learner.keep_logits,
        samples=setup.shared(rows.mask.shape[0]) if samples is None else samples,
        places=places,
        words=None if reading is None else reading.words,
    )
    return scores if reading is None else readings.apart(reading, scores, *where)
