"""Programs: a config with its tasks, tokenizer, networks, mesh and the step of each phase.

Training, evaluation and sampling from a prompt use the same program.
"""

import dataclasses
import functools
import itertools
import warnings
from collections.abc import Sequence
from typing import Any

import jax

from rljax import environments, models, sampling, types
from rljax.config import modules, resolve, schema
from rljax.data import storage, tokenizers
from rljax.data.config import TokenizerConfig
from rljax.environments import control
from rljax.environments.worlds.host import limited
from rljax.host import backends, memory
from rljax.language import messages
from rljax.models import actors
from rljax.models.checkpoints import weights
from rljax.sampling import stopping
from rljax.training import checks, phases, readings, sharding, steps
from rljax.training.learning import optimizers, splits
from rljax.training.producers import stored as stored_rows
from rljax.transforms.source import files

Phase = resolve.Phase
Setup = phases.Setup


class SharedWorkWarning(UserWarning):
    """Several devices do the same work."""


@dataclasses.dataclass(frozen=True)
class Program:
    """A run, ready to start. Creating a program compiles nothing, and reads the files of stored rows only."""

    resolved: resolve.Resolved
    tokenizer: tokenizers.Tokenizer
    tasks: tuple[environments.Task, ...]  # of each phase, bound to the tokenizer
    mesh: jax.sharding.Mesh
    stored: tuple[stored_rows.Rows | None, ...]  # of each phase whose source reads files
    rollout: jax.sharding.Mesh | None = None  # of the sampler, if it has devices of its own

    def __repr__(self) -> str:
        parts = ", ".join(f"{p.name} {p.first + 1}-{p.last} {p.algorithm.spec.partition('(')[0]}" for p in self.phases)
        return f"Program({self.config.name}: {parts}; task {self.tasks[-1].name}, {self.mesh.size} devices)"

    @property
    def config(self) -> schema.ConfigDict:
        """The config of the run."""
        return self.resolved.config

    @property
    def settings(self) -> schema.Config:
        """The settings of the run, without the changes of its phases."""
        return self.resolved.settings

    @functools.cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The phases, in order, each with its number of micro-batches."""
        return tuple(splits.divided(p, t, self.mesh) for p, t in zip(self.resolved.phases, self.tasks, strict=True))

    @property
    def key(self) -> types.Key:
        """The run's root key; always threefry, so that draws do not depend on JAX's default generator."""
        return jax.random.key(self.settings.seed, impl="threefry2x32")

    @property
    def updates(self) -> int:
        """Number of updates of the whole run."""
        return self.phases[-1].last

    def number(self, step: int) -> int:
        """Return the index of the phase that runs update ``step + 1``; after the last update, of the last phase."""
        return next((i for i, p in enumerate(self.phases) if step < p.last), len(self.phases) - 1)

    def member(self, resolved: resolve.Resolved, traced: bool = False) -> "Program":
        """Return the program of a config that differs in its seed; it shares what is compiled.

        Args:
          resolved: the config.
          traced: whether it differs in traced numbers too.
        """
        other = dataclasses.replace(self, resolved=resolved)
        if traced:
            steps_of = zip(self.steps, other.setups, strict=True)
            other.__dict__["steps"] = tuple(dataclasses.replace(step, setup=setup) for step, setup in steps_of)
        else:
            other.__dict__.update(steps=self.steps, setups=self.setups)
        if self.rollout is not None:
            other.__dict__["sampler"] = self.sampler.member(resolved, traced)
        return other

    @functools.cached_property
    def sampler(self) -> "Program":
        """The same program on the mesh on which rollouts are computed."""
        return self if self.rollout is None else dataclasses.replace(self, mesh=self.rollout, rollout=None)

    @functools.cached_property
    def policy(self) -> models.Model:
        """The policy network of the last phase; its architecture is the same in all phases."""
        return self.model("policy")

    def model(self, module: str, phase: Phase | None = None) -> Any:
        """Return the network of a module in a phase (the last one by default).

        Its output is logits for "policy", and for other modules what the algorithms of all phases use; a head has the
        network of its trunk, with a scalar.
        """
        phase = self.phases[-1] if phase is None else phase
        source = phase.of(module).follows or module
        outputs = modules.outputs(self.phases, source) or {"scalar"}
        output: Any = "both" if len(outputs) > 1 else next(iter(outputs))
        if phase.settings.model.kind == "mlp":
            if output == "both":
                raise ValueError(
                    f"config.module.{module}: values and log-probs or Q are read of it, and an actor has one output."
                )
            if source != "policy" and any("log_normaliser" in p.fields(source) for p in self.phases):
                output = "action"
            return self._actor(phase, output, modules.bins(self.phases, source))
        architecture = phase.settings.model.network(self.tokenizer.vocabulary, self._placeholder, output)
        if module != "policy":
            architecture = phase.module[module].architecture(architecture)
        task = next(task for p, task in zip(self.phases, self.tasks, strict=True) if p is phase)
        remat = splits.remat(architecture, phase, task, self.mesh)
        architecture = dataclasses.replace(architecture, bins=modules.bins(self.phases, source), remat=remat)
        return models.build(architecture, sharding.Layout(self.mesh))

    def _actor(self, phase: Phase, output: Any, bins: Any) -> actors.Actor:
        """Return the network of a module of a control world; all phases observe and do the same."""
        rules: list[Any] = [getattr(task, "rules", None) for task in self.tasks]
        kinds = {(r.observed, r.actions) for r in rules}
        if len(kinds) > 1:
            raise ValueError(f"config.phases: the tasks observe and do different things, {messages.shown(kinds)}.")
        observed, actions = kinds.pop()
        model = phase.settings.model
        kind = "denoiser" if model.denoising.steps else "gaussian"
        if output == "action" and model.denoising.positions == "step":
            raise ValueError("config.model.denoising.positions='step': a critic of actions reads whole ones, 'action'.")
        of = ("categorical", actions.count) if isinstance(actions, control.Discrete) else (kind, actions.size)
        return actors.Actor(model.mlp, observed, *of, denoising=model.denoising, output=output, bins=bins)

    @functools.cached_property
    def _placeholder(self) -> int:
        """The token of a picture; -1 if the policy has no vision tower."""
        return tokenizers.placeholder(self.tokenizer) if self.settings.model.architecture.vision.layers else -1

    @functools.cached_property
    def setups(self) -> tuple[Setup, ...]:
        """Each phase on devices."""
        drawn = [
            p.settings.task if groups is None else (groups.file, groups.shape)
            for p, groups in zip(self.phases, self.stored, strict=True)
        ]
        names = list(dict.fromkeys(drawn))
        return tuple(
            self._setup(number, cursor=names.index(name), cursors=len(names)) for number, name in enumerate(drawn)
        )

    def _setup(self, number: int, cursor: int, cursors: int) -> Setup:
        phase, task, policy = self.phases[number], self.tasks[number], self.model("policy", self.phases[number])
        sampler = phase.settings.sampler
        decoder = policy
        if isinstance(policy, models.Model):
            shape = dataclasses.replace(policy.architecture, scan=policy.architecture.scan and not sampler.unroll)
            decoder = models.build(shape, sharding.Layout(self.mesh, sampler.layout))
        before, after = ({m for p in some for m in p.modules} for some in (self.phases[:number], self.phases[number:]))
        names = [*phase.modules, *sorted((before & after) - {*phase.modules})]  # those in use before and after stay
        names = [m for m in names if m != "policy"]
        return phases.Setup(
            phase=phase,
            task=task,
            networks={"policy": policy, **{m: self.model(m, phase) for m in names}},
            decoder=decoder,
            ends=self.ends(tuple(dict.fromkeys((*sampler.stop, *getattr(task, "turn_end", ()))))),
            mesh=self.mesh,
            cursor=cursor,
            cursors=cursors,
            stored=self.stored[number],
            reads=self._reads(number),
        )

    def _reads(self, number: int) -> dict[str, readings.Reading]:
        """Return what modules read in place of the rows of a phase, by name, of those that have such settings."""
        phase, task, stored = self.phases[number], self.tasks[number], self.stored[number] is not None
        built = {
            name: readings.build(phase.reading(name), self.tokenizer, task, stored, f"config.module.{name}")
            for name in phase.modules[1:]
        }
        return {name: reading for name, reading in built.items() if reading is not None}

    @functools.cached_property
    def steps(self) -> tuple[steps.Step, ...]:
        """The compiled functions of each phase, in order."""
        built: list[steps.Step] = []
        for setup in self.setups:
            built.append(steps.make_step(setup, built[-1] if built else None))
        return tuple(built)

    def initial(self, number: int = 0, policy: bool = True) -> dict[str, types.Tree]:
        """Return the parameters of the modules that start phase ``number`` from a folder, sharded for it, by module.

        Args:
          number: of the phase, from 0.
          policy: whether to read the policy's, which starts in phase 0.
        """
        folders = {"policy": self.settings.model.weights} if policy and number == 0 else {}
        known = {m for setup in self.setups[:number] for m in setup.networks}
        for name in {*self.setups[number].networks} - known - {"policy"}:
            folder = self.phases[number].module[name].settings.weights
            folders[name] = "" if folder == "random" else folder
        networks, layout = self.setups[number].networks, self.steps[number].sharding
        shardings = {**layout.params, **layout.frozen}
        return {
            name: weights.load(folder, networks[name].architecture, shardings[name], self.key)
            for name, folder in sorted(folders.items())
            if folder
        }

    def begin(self) -> types.TrainState:
        """Return the state in which the run starts: from folders of weights, or random."""
        return self.steps[0].begin(None, self.key, self.initial())

    def ends(self, texts: tuple[str, ...]) -> sampling.Ends:
        """Return what ends a completion or a turn: stop tokens, texts that are one special token, and other texts."""
        special = self._special(texts)
        stop = tuple(dict.fromkeys((*self.tokenizer.stop, *special.values())))
        other = tuple(text for text in texts if text not in special)
        pieces = self.tokenizer.pieces() if other else ()
        strings = stopping.build(other, pieces, self.policy.architecture.vocabulary) if other else None
        return sampling.Ends(stop, self.tokenizer.pad, strings)

    def _special(self, texts: tuple[str, ...]) -> dict[str, int]:
        """Return the ids of texts that are one special token, such as "<|im_end|>"."""
        if not texts:
            return {}
        pieces, unknown = self.tokenizer.pieces(), self.tokenizer.unk
        ids = {text: self.tokenizer.encode(text) for text in texts}
        return {t: i[0] for t, i in ids.items() if len(i) == 1 and pieces[i[0]] is None and i[0] != unknown}


def build(
    config: schema.ConfigDict | resolve.Resolved,
    tokenizer: tokenizers.Tokenizer | None = None,
    devices: Sequence[Any] | None = None,
    task: environments.Task | None = None,
    trains: bool = True,
) -> Program:
    """Build the program of a config.

    Args:
      config: see ``config.schema``; or a config that is resolved.
      tokenizer: the tokenizer; None: the one that ``config.tokenizer`` describes.
      devices: the devices of the mesh; None: all devices.
      task: a task that replaces the config's in every phase.
      trains: whether it trains; else files of stored rows are not read, and may be absent, and the algorithm is not
        checked against the task.

    Returns:
      The program.

    Raises:
      CodeError: an exception inside a task or a piece of any phase, or a result of another shape (``training.checks``).
      ValueError: the errors of ``resolve.run``, a task that does not fit its tokenizer, a mesh that does not fit
        the devices, or weights whose shapes differ from their config.json.
    """
    resolved = config if isinstance(config, resolve.Resolved) else resolve.run(config, trains)
    backends.start(resolved.settings.cpu_devices, resolve.parallel(resolved.config))
    mesh, rollout = _meshes(resolved, devices, trains)
    tokenizer = tokenizer or make_tokenizer(resolved)
    tasks = _bound(resolved, tokenizer, task)
    stored = tuple(_stored(phase, task, tokenizer, trains) for phase, task in zip(resolved.phases, tasks, strict=True))
    program = Program(resolved, tokenizer, tasks, mesh, stored, rollout)
    _check_weights(program)
    for setup in program.setups:
        checks.check(setup, trains)
        lines = splits.over_devices(setup) if trains else []
        if len(lines) > 1:
            warnings.warn(f"phase {setup.phase.name!r}: {'; '.join(lines)}.", SharedWorkWarning, stacklevel=2)
    return program


def _meshes(
    resolved: resolve.Resolved, devices: Sequence[Any] | None, trains: bool
) -> tuple[jax.sharding.Mesh, jax.sharding.Mesh | None]:
    """Return the mesh of a run, and that of its sampler if it trains and the sampler has devices of its own.

    Raises:
      ValueError: a mesh does not fit its devices, or the rows of a phase do not fit a mesh.
    """
    fields = resolved.settings.mesh
    sampling, updating = sharding.apart(devices, fields.rollout if trains else 0)
    mesh, rollout = sharding.make_mesh(fields.axes, updating), None
    if sampling:
        free = {} if -1 in fields.axes.values() else {"data": -1}  # an axis that takes the rest
        try:
            rollout = sharding.make_mesh({**fields.axes, **free}, sampling)
        except ValueError as error:
            raise ValueError(f"config.mesh.rollout={fields.rollout}: {error}") from None
    for phase in resolved.phases:
        if phase.settings.learner.offload:
            memory.check(mesh.local_devices, optimizers.HOST, "learner.offload")
        if phase.settings.model.architecture.decode_attention == "kernel" and mesh.devices.flat[0].platform == "tpu":
            raise ValueError(
                "config.model.decode_attention='kernel': is for GPUs, and these are TPUs. To fix: 'plain'."
            )
        rows = phase.settings.batch.prompts * phase.settings.batch.samples
        for each in (mesh, rollout):
            if each is not None:
                sharding.check_rows(each, rows, f"batch.prompts * samples (phase {phase.name!r})")
    return mesh, rollout


def _bound(
    resolved: resolve.Resolved, tokenizer: tokenizers.Tokenizer, task: environments.Task | None
) -> tuple[environments.Task, ...]:
    """Return the task of each phase, or ``task`` in its place, bound to the tokenizer once."""
    bound: dict[str, environments.Task] = {}
    for phase in resolved.phases:
        if phase.settings.task not in bound:
            with limited.within(phase.settings.verifier):
                bound[phase.settings.task] = (task or phase.task).bind(tokenizer)
    return tuple(bound[phase.settings.task] for phase in resolved.phases)


def _check_weights(program: Program) -> None:
    """Check the folders that modules start from: tensors, heads that nothing trains, and tokenizers."""
    if program.settings.model.weights:
        weights.check(program.settings.model.weights, program.policy.architecture)
    for name in dict.fromkeys(m for setup in program.setups for m in setup.networks if m != "policy"):
        module = program.phases[0].module[name].settings
        if module.weights in ("", "random"):
            continue
        where, architecture = f"config.module.{name}", program.model(name).architecture
        stored = weights.check(module.weights, architecture)
        first = next(p for p in program.phases if name in p.modules)
        read = any(phase.heads(name) for phase in program.phases)  # else it is the trunk of others
        if architecture.output == "scalar" and read and name not in first.trained and "score.weight" not in stored:
            raise ValueError(
                f"{where}.weights={module.weights!r}: the folder has no head (score.weight), and phase {first.name!r} "
                "reads the module before any phase has trained it."
            )
        tokenizers.check_same(program.tokenizer, module.weights, where)


def _stored(
    phase: Phase, task: environments.Task, tokenizer: tokenizers.Tokenizer, trains: bool
) -> stored_rows.Rows | None:
    """Read and check the files of a phase's source, if it has any and they are trained on."""
    source = phase.algorithm.source
    if not isinstance(source, files.Stored):
        return None
    newest = None if source.fixed else phase.first
    reader = stored_rows.reader(source, task, tokenizer, phase.settings.batch.samples, newest)
    try:
        if trains and source.fixed:
            read = reader.read(source.file)
            return read.split(source.heldout) if source.heldout else read
        if trains and not storage.is_dir(storage.path(source.file)):
            raise FileNotFoundError(f"{source.file}: no such folder")
        return reader.blank(source.file)
    except (ValueError, OSError) as error:
        raise ValueError(f"phase {phase.name!r}, {source.spec}: {error}") from None


def remarks(step: steps.Step) -> list[str]:
    """Return what a user should know of a phase before it runs."""
    phase = step.setup.phase
    return [*phase.warnings, *(f"note: {note}" for note in (*step.notes, *phase.notes))]


def make_tokenizer(resolved: resolve.Resolved) -> tokenizers.Tokenizer:
    """Return the tokenizer of a run: loaded, of bytes, or trained on the text of all phases' tasks.

    Raises:
      ValueError: its files cannot be read, or the text does not fill the vocabulary.
    """
    fields: TokenizerConfig = resolved.settings.tokenizer
    path = fields.path or resolved.settings.model.weights
    if path:
        try:
            return tokenizers.load(path, fields.date)
        except (ValueError, FileNotFoundError) as error:
            raise ValueError(f"config.tokenizer.path={path!r}: {error}") from error
    if resolved.settings.model.kind != "transformer":
        return tokenizers.make("bytes", ())  # nothing reads it
    tasks = {phase.settings.task: phase.task for phase in resolved.phases}  # each once
    corpus = itertools.chain.from_iterable(task.corpus() for task in tasks.values())
    return tokenizers.make(fields.kind, corpus, fields.vocabulary or None)
