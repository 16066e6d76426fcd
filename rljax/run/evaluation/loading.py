"""Checkpoints as programs and parameters, and as policies whose decoding critics shift."""

import base64
import dataclasses
import re
from collections.abc import Sequence
from typing import Any

from absl import flags

from rljax import environments, types
from rljax.config import files, resolve
from rljax.data import storage, tokenizers
from rljax.environments import traits
from rljax.host import backends
from rljax.language import dotted
from rljax.run import programs
from rljax.run.records import checkpoints
from rljax.sampling import shifted

ALLOW_CODE = "Packages outside rljax whose code the run's config may name, such as experiments."
CRITICS = ("q_target", "q_2_target")


def load(
    workdir: str,
    task: str = "",
    step: int | None = None,
    allow_code: Sequence[str] = (),
    module: str = "policy",
    shift: float = 0.0,
    critics: Sequence[str] = CRITICS,
) -> tuple[programs.Program, types.Tree, int]:
    """Load a run's checkpoint, which also contains the config and the tokenizer.

    The config is the run's, so it may name functions of rljax's tables and nothing else, unless ``allow_code``
    allows it. ``task`` may name any task.

    Args:
      workdir: work directory of the run.
      task: a task that replaces the run's; the run's tokenizer must be able to encode it, and the algorithm of the run
        need not fit it. "": the run's.
      step: step of the checkpoint; None: the newest.
      allow_code: packages and modules that dotted paths of the run's config may name, such as ("experiments",).
      module: the module whose parameters are read.
      shift: beta of ``sampling.shifted``, by which the program decodes; 0: as the run does.
      critics: the modules whose logits are Q; without ``shift`` they are not read.

    Returns:
      (program, the module's parameters, step of the checkpoint). With ``shift``, the parameters are a tuple, the
      module's and each critic's, which ``evaluate`` and ``complete`` take like any parameters.

    Raises:
      FileNotFoundError: there is no such checkpoint.
      ValueError: an unknown task, a module that the checkpoint lacks, a task that the tokenizer cannot encode, or code
        that ``allow_code`` does not allow; or a shift of a network or a task that cannot be decoded so.
    """
    backends.start()
    with checkpoints.Checkpointer(storage.path(workdir) / "checkpoints") as saved:
        extras = saved.read_extras(step)
        if not isinstance(extras.get("config"), dict) or not isinstance(extras.get("tokenizer"), str):
            raise ValueError(f"{workdir}: a checkpoint without config and tokenizer, so not of a run")
        config = files.from_dict(extras["config"], f"{workdir}: config")
        for network in (config.model, *config.module.values()):
            network.update({"weights": "", "digest": ""})  # the checkpoint has the weights
        config.cpu_devices = 0  # JAX has started, on the devices of this process
        config = resolve.played(config, task) if task else config
        tokenizer = tokenizers.load(base64.b64decode(extras["tokenizer"]))
        rewards = re.findall(r"""['"]([\w.]+):\w+['"]""", task)  # modules of ``reward``
        with dotted.only([*allow_code, task.partition("(")[0], *rewards]):
            program = programs.build(config, tokenizer, trains=False)
        number = program.number(extras["step"] - 1)
        setup, state, trees = program.setups[number], program.steps[number].shape, {}
        names = (module, *(critics if shift else ()))
        for name in dict.fromkeys(n for of in names for n in (setup.phase.of(of).trunk, of) if n):
            field = "params" if name in state.params else "frozen"
            held: dict[str, types.Tree] = getattr(state, field)
            if name not in held:
                known = ", ".join((*state.params, *state.frozen))
                raise ValueError(
                    f"{workdir}: the checkpoint of step {extras['step']} has no module {name!r}, only {known}."
                )
            restored, _, saved_step = saved.restore_params({name: held[name]}, step, field)
            trees |= restored
    if not shift:
        return program, setup.whole(trees, module), saved_step
    return _shifted(program, number, critics, shift), tuple(setup.whole(trees, name) for name in names), saved_step


def _shifted(program: programs.Program, number: int, critics: Sequence[str], shift: float) -> programs.Program:
    """Return the program whose phase ``number`` decodes with a shift by critics; ValueError if it cannot."""
    setup = program.setups[number]
    task, sampler, about = setup.task, setup.settings.sampler, traits.traits(setup.task)
    if about.actions is not None or (environments.is_world(task) and setup.world is None) or sampler.slots:
        kind = "a control world" if about.actions is not None else "a world on the host, or one with sampler.slots"
        raise ValueError(f"--shift={shift:g}: task {task.name!r} is {kind}, whose decoding critics cannot shift")
    networks: list[Any] = [setup.decoder]
    for name in critics:
        network = setup.networks[name]
        if network.architecture.output == "scalar":
            raise ValueError(f"--critics: {name!r} has one number at each position, expected logits, which are Q")
        shape = dataclasses.replace(network.architecture, scan=setup.decoder.architecture.scan)
        networks.append(dataclasses.replace(network, architecture=shape, layout=setup.decoder.layout))
    decoder: Any = shifted.Shifted(tuple(networks), shift)
    changed = dataclasses.replace(setup, decoder=decoder)
    other, steps = dataclasses.replace(program), list(program.steps)
    steps[number] = dataclasses.replace(steps[number], setup=changed)
    setups = [changed if i == number else x for i, x in enumerate(program.setups)]
    other.__dict__.update(steps=tuple(steps), setups=tuple(setups))
    return other


def define_flags() -> None:
    """Define the flags of the commands that decode with a checkpoint."""
    flags.DEFINE_integer("step", None, "Step of the checkpoint; default: the newest.")
    flags.DEFINE_list("allow_code", [], ALLOW_CODE)
    flags.DEFINE_float("shift", 0.0, "Beta: decode by the log-probs plus beta times the least Q of --critics.")
    flags.DEFINE_list("critics", list(CRITICS), "Modules whose logits are Q, for --shift.")
