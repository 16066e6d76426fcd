"""A config made ready to run: task and tokenizer bound, networks built, the mesh laid, each phase's step.

Everything a run, an evaluation and a prompt typed by a person share.
"""

import dataclasses
import functools
import warnings
from collections.abc import Sequence
from typing import Any

import jax

from rljax import environments, models, sampling, types
from rljax.algorithms import interpreter
from rljax.config import resolve, schema
from rljax.data import tokenizers
from rljax.models.checkpoints import weights
from rljax.sampling import stopping
from rljax.training import optimizers, plans, sharding, steps


class SharedWorkWarning(UserWarning):
    """Some devices repeat what others do."""


@dataclasses.dataclass(frozen=True)
class Program:
    """What a config stands for. Making one compiles nothing and touches no file."""

    config: schema.ConfigDict
    resolved: resolve.Resolved
    tokenizer: tokenizers.Tokenizer
    task: environments.Task
    mesh: jax.sharding.Mesh

    @property
    def key(self) -> types.Key:
        """The run's root key. Threefry by name: a draw must not depend on jax's default generator."""
        return jax.random.key(self.config.seed, impl="threefry2x32")

    @functools.cached_property
    def policy(self) -> models.Model:
        """The policy network."""
        return self.model("policy")

    @functools.cached_property
    def sampler(self) -> models.Model:
        """The policy network as rollouts and evaluations lay it out: ``config.sampler.layout``."""
        return models.build(self.policy.architecture, sharding.Layout(self.mesh, self.config.sampler.layout))

    def model(self, module: str) -> models.Model:
        """Return the network of a module: logits for "policy", a scalar for "value" and "reward"; both on one trunk."""
        shared = self.config.learner.shared_critic and any(
            interpreter.needs(p.algorithm).value for p in self.resolved.phases
        )
        output = "scalar" if module != "policy" else "both" if shared else "logits"
        architecture = resolve.architecture(self.config, self.tokenizer.vocabulary, output)
        return models.build(architecture, sharding.Layout(self.mesh))

    def modules(self, phase: resolve.Phase) -> tuple[str, ...]:
        """Return the networks of a phase; a critic on the policy's trunk is none of its own."""
        shared = self.policy.architecture.output == "both"
        return tuple(m for m in plans.modules(phase.algorithm) if m != "value" or not shared)

    @functools.cached_property
    def steps(self) -> tuple[steps.Step, ...]:
        """The compiled functions of each phase, in order."""
        made: list[steps.Step] = []
        for phase in self.resolved.phases:
            plan = self.plan(phase)
            made.append(
                steps.make_step(
                    plan,
                    before=made[-1].shape if made else None,
                    carry=not phase.reset_optimizer,
                    keep=phase.reference == "keep",
                )
            )
        return tuple(made)

    def initial(self) -> types.Tree | None:
        """Return the policy's parameters of ``config.model.weights``, laid out for the first phase, if it names any."""
        folder = self.config.model.weights
        if not folder:
            return None
        return weights.load(folder, self.policy.architecture, self.steps[0].sharding.params["policy"], self.key)

    def plan(self, phase: resolve.Phase) -> plans.Plan:
        """Return what the step of a phase is made for."""
        learner = self.config.learner
        return plans.Plan(
            algorithm=phase.algorithm,
            optimizers=phase.optimizers,
            models={m: self.policy if m == "policy" else self.model(m) for m in self.modules(phase)},
            task=self.task,
            stop=self.stop,
            strings=self.strings,
            pad=self.tokenizer.pad,
            prompts=phase.prompts,
            samples=phase.samples,
            processors=self.resolved.processors,
            mesh=self.mesh,
            sampler=self.sampler,
            rescore=self.resolved.rescore,
            epochs=learner.epochs,
            minibatches=learner.minibatches,
            microbatches=learner.microbatches,
            peek=self.config.log.rollout_rows,
            share=learner.share_prompt,
            lanes=learner.lanes,
            vocabulary=learner.vocabulary,
            keep_logits=learner.keep_logits,
            rounding=learner.rounding,
            offload=learner.offload,
            block=self.config.sampler.cache_block,
            compact=self.config.sampler.compact,
        )

    @functools.cached_property
    def stop(self) -> tuple[int, ...]:
        """Ids that end a completion: the tokenizer's, and those of ``sampler.stop`` that are a special token each."""
        return tuple(dict.fromkeys((*self.tokenizer.stop, *self._special.values())))

    @functools.cached_property
    def strings(self) -> stopping.Table | None:
        """Texts of ``sampler.stop`` that end a completion, those that are special tokens aside."""
        texts = tuple(text for text in self.config.sampler.stop if text not in self._special)
        if not texts:
            return None
        return stopping.build(texts, self.tokenizer.pieces(), self.policy.architecture.vocabulary)

    @functools.cached_property
    def _special(self) -> dict[str, int]:
        """Texts of ``sampler.stop`` that the tokenizer writes as one special token, such as "<|im_end|>"."""
        if not self.config.sampler.stop:
            return {}
        pieces, unknown = self.tokenizer.pieces(), self.tokenizer.unk
        ids = {text: self.tokenizer.encode(text) for text in self.config.sampler.stop}
        return {t: i[0] for t, i in ids.items() if len(i) == 1 and pieces[i[0]] is None and i[0] != unknown}

    @functools.cached_property
    def generate(self):
        """Compiled ``(params, prompts, keys, samples, processors) -> Sample``, for evaluation and sampling."""

        @functools.partial(jax.jit, static_argnames=("samples", "processors"))
        def run(params, prompts, keys, samples, processors):
            return sampling.generate(
                self.sampler,
                params,
                prompts,
                keys,
                samples=samples,
                length=self.task.completion_length,
                stop=self.stop,
                strings=self.strings,
                pad=self.tokenizer.pad,
                processors=processors,
                block=self.config.sampler.cache_block,
                compact=self.config.sampler.compact,
            )

        return run

    @functools.cached_property
    def verify(self):
        """Compiled device verifier of held-out rows: ``(index, token, mask) -> Verdict``."""
        task = self.task
        assert environments.scored_on_device(task)
        return jax.jit(lambda index, token, mask: task.verify(index, "heldout", token, mask))


def build(
    config: schema.ConfigDict,
    tokenizer: tokenizers.Tokenizer | None = None,
    devices: Sequence[Any] | None = None,
    task: environments.Task | None = None,
) -> Program:
    """Make a config ready to run; without a tokenizer or task, make the one it asks for.

    ``devices`` None means all there are.

    Raises:
      ValueError: what ``config.resolve`` finds, a task that does not fit its tokenizer, a mesh that does not fit
        the devices, or weights that are not what they say.
    """
    config = resolve.complete(config)  # a copy: the caller may go on changing theirs
    resolved = resolve.resolve(config)
    start_devices(config)
    mesh = sharding.make_mesh(config.mesh.to_dict(), devices)
    if config.learner.offload:
        sharding.check_memory(mesh, optimizers.HOST, "learner.offload")
    for phase in resolved.phases:
        sharding.check_rows(mesh, phase.prompts * phase.samples, f"batch.prompts * samples (phase {phase.name!r})")
    if tokenizer is None:
        tokenizer = make_tokenizer(config, resolved.task)
    made = Program(config, resolved, tokenizer, (task or resolved.task).bind(tokenizer), mesh)
    if config.model.weights:
        weights.check(config.model.weights, made.policy.architecture)
    for phase in resolved.phases:
        said = work(made.plan(phase))
        if len(said) > 1:
            warnings.warn(f"phase {phase.name!r}: {'; '.join(said)}.", SharedWorkWarning, stacklevel=2)
    return made


def start_devices(config: schema.ConfigDict) -> None:
    """Tell jax how many devices to make of a CPU; it must not have started with another number."""
    if config.cpu_devices:
        try:
            jax.config.update("jax_num_cpu_devices", config.cpu_devices)
        except RuntimeError:
            if jax.local_device_count() != config.cpu_devices:
                raise ValueError(
                    f"config.cpu_devices={config.cpu_devices}: jax has started with {jax.local_device_count()}; "
                    "set it first."
                ) from None


def work(plan: plans.Plan) -> list[str]:
    """Say, in a line, how a plan's micro-batches divide over devices; in a second what to do where they do not."""
    parts = max(o.minibatches or plan.minibatches for o in plan.algorithm.objectives) * plan.microbatches
    shared = bool(plan.shared(plan.rows // parts))
    count, unit = (plan.prompts if shared else plan.rows) // parts, "prompts" if shared else "rows"
    used, there = sharding.spread(plan.mesh, count)
    said = [f"an update: micro-batches of {count} {unit}, over {used} of the {there} devices that split rows"]
    if used < there:
        mend = f"fewer micro-batches (learner.microbatches={plan.microbatches}), more {unit}"
        mend += ", or learner.share_prompt=False" if shared else ""
        said.append(f"{there // used} devices at a time do the same work; {mend} would mend that")
    return said


def make_tokenizer(config: schema.ConfigDict, task: environments.Task) -> tokenizers.Tokenizer:
    """Load the files the config names, take bytes, or train a SentencePiece model on the task's own text."""
    fields = config.tokenizer
    path = fields.path or config.model.weights
    if path:
        try:
            return tokenizers.load(path)
        except (ValueError, FileNotFoundError) as error:
            raise ValueError(f"config.tokenizer.path={path!r}: {error}") from error
    return tokenizers.make(fields.kind, task.corpus(), fields.vocabulary or None)
