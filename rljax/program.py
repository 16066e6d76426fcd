"""A config made ready to run: task and tokenizer bound, networks built, the mesh laid, each phase's step.

Everything a run, an evaluation and a prompt typed by a person share.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax

from rljax import config as configs
from rljax import losses, models, optimizer, sampling, sharding, tasks, types
from rljax import plan as plans
from rljax import step as step_lib
from rljax.data import tokenizer as tokenizers
from rljax.models import weights
from rljax.sampling import stopping


@dataclasses.dataclass(frozen=True)
class Program:
    """What a config stands for. Making one compiles nothing and touches no file."""

    config: configs.ConfigDict
    resolved: configs.Resolved
    tokenizer: tokenizers.Tokenizer
    task: tasks.Task
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
            losses.needs(p.algorithm).value for p in self.resolved.phases
        )
        output = "scalar" if module != "policy" else "both" if shared else "logits"
        architecture = configs.architecture(self.config, self.tokenizer.vocabulary, output)
        return models.build(architecture, sharding.Layout(self.mesh))

    def modules(self, phase: configs.Phase) -> tuple[str, ...]:
        """Return the networks of a phase; a critic on the policy's trunk is none of its own."""
        shared = self.policy.architecture.output == "both"
        return tuple(m for m in plans.modules(phase.algorithm) if m != "value" or not shared)

    @functools.cached_property
    def steps(self) -> tuple[step_lib.Step, ...]:
        """The compiled functions of each phase, in order."""
        made: list[step_lib.Step] = []
        for phase in self.resolved.phases:
            plan = self.plan(phase)
            made.append(
                step_lib.make_step(
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

    def plan(self, phase: configs.Phase) -> plans.Plan:
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
            block=self.config.sampler.block,
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
                block=self.config.sampler.block,
                compact=self.config.sampler.compact,
            )

        return run

    @functools.cached_property
    def verify(self):
        """Compiled device verifier of held-out rows: ``(index, token, mask) -> Verdict``."""
        task = self.task
        assert tasks.scored_on_device(task)
        return jax.jit(lambda index, token, mask: task.verify(index, "heldout", token, mask))


def build(
    config: configs.ConfigDict,
    tokenizer: tokenizers.Tokenizer | None = None,
    devices: Sequence[Any] | None = None,
    task: tasks.Task | None = None,
) -> Program:
    """Make a config ready to run; without a tokenizer or task, make the one it asks for.

    ``devices`` None means all there are.

    Raises:
      ValueError: what ``config.resolve`` finds, a task that does not fit its tokenizer, a mesh that does not fit
        the devices, or weights that are not what they say.
    """
    config = configs.complete(config)  # a copy: the caller may go on changing theirs
    resolved = configs.resolve(config)
    start_devices(config)
    mesh = sharding.make_mesh(config.mesh.to_dict(), devices)
    if config.learner.offload:
        sharding.check_memory(mesh, optimizer.HOST, "learner.offload")
    for phase in resolved.phases:
        sharding.check_rows(mesh, phase.prompts * phase.samples, f"batch.prompts * samples (phase {phase.name!r})")
    if tokenizer is None:
        tokenizer = make_tokenizer(config, resolved.task)
    made = Program(config, resolved, tokenizer, (task or resolved.task).bind(tokenizer), mesh)
    if config.model.weights:
        weights.check(config.model.weights, made.policy.architecture)
    return made


def start_devices(config: configs.ConfigDict) -> None:
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


def make_tokenizer(config: configs.ConfigDict, task: tasks.Task) -> tokenizers.Tokenizer:
    """Load the files the config names, take bytes, or train a SentencePiece model on the task's own text."""
    fields = config.tokenizer
    path = fields.path or config.model.weights
    if path:
        try:
            return tokenizers.load(path)
        except (ValueError, FileNotFoundError) as error:
            raise ValueError(f"config.tokenizer.path={path!r}: {error}") from error
    return tokenizers.make(fields.kind, task.corpus(), fields.vocabulary or None)
