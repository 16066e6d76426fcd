"""Checkpoints as programs and parameters, and as policies whose decoding critics steer."""

import base64
import dataclasses
import functools
import re
from collections.abc import Sequence
from typing import Any

import jax
from absl import flags

from rljax import environments, types
from rljax.config import files, resolve
from rljax.data import storage, tokenizers
from rljax.environments import traits
from rljax.host import backends
from rljax.language import dotted
from rljax.run import programs
from rljax.run.records import checkpoints
from rljax.sampling import critics as steered

ALLOW_CODE = "Packages outside rljax whose code the run's config may name, such as experiments."
CRITICS = ("q_target", "q_2_target")


@dataclasses.dataclass(frozen=True)
class Search:
    """A beam search over steps, see ``sampling.critics.Beams``.

    Attributes:
      beams: of each prompt.
      branches: continuations of each beam.
      delimiter: text whose tokens each end a step.
      critic: the module whose scalar output chooses.
    """

    beams: int
    branches: int = 5
    delimiter: str = ";"
    critic: str = "value"


def load(
    workdir: str,
    task: str = "",
    step: int | None = None,
    allow_code: Sequence[str] = (),
    module: str = "policy",
    shift: float = 0.0,
    critics: Sequence[str] = CRITICS,
    search: Search | None = None,
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
      shift: beta of ``sampling.critics.Shifted``, by which the program decodes; 0: as the run does.
      critics: the modules whose logits are Q; without ``shift`` they are not read.
      search: completions of the program are found by it; None: they are sampled.

    Returns:
      (program, the module's parameters, step of the checkpoint). With ``shift`` or ``search``, the parameters are a
      tuple, the module's and each critic's, which ``evaluate`` and ``complete`` take like any parameters.

    Raises:
      FileNotFoundError: there is no such checkpoint.
      ValueError: an unknown task, a module that the checkpoint lacks, a task that the tokenizer cannot encode, or code
        that ``allow_code`` does not allow; a shift and a search; or a network or a task that cannot be decoded so.
    """
    if shift and search:
        raise ValueError(f"--shift={shift:g}: expected 0 with --beams={search.beams}")
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
        names = (module, *(critics if shift else ()), *((search.critic,) if search else ()))
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
    if len(names) == 1:
        return program, setup.whole(trees, module), saved_step
    made = _searched(program, number, search) if search else _shifted(program, number, critics, shift)
    return made, tuple(setup.whole(trees, name) for name in names), saved_step


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
    decoder: Any = steered.Shifted(tuple(networks), shift)
    changed = dataclasses.replace(setup, decoder=decoder)
    return _replaced(program, number, dataclasses.replace(program.steps[number], setup=changed))


def _searched(program: programs.Program, number: int, search: Search) -> programs.Program:
    """Return the program whose phase ``number`` completes prompts by a search; ValueError if it cannot."""
    setup = program.setups[number]
    if traits.traits(setup.task).actions is not None or environments.is_world(setup.task):
        raise ValueError(f"--beams={search.beams}: task {setup.task.name!r} is a world; a search needs one turn")
    critic, ids = setup.networks[search.critic], program.tokenizer.encode(search.delimiter)
    if critic.architecture.output != "scalar":
        raise ValueError(f"--critic={search.critic!r}: it has logits, expected one number at each position, V")
    if not ids or program.tokenizer.unk in ids:
        raise ValueError(f"--delimiter={search.delimiter!r}: expected text that the run's tokenizer knows")
    beams = steered.Beams(setup.decoder, critic, search.beams, search.branches, tuple(sorted({*ids})))
    search_to_end = functools.partial(beams.search, ends=setup.ends, length=setup.task.completion_length)
    step = dataclasses.replace(program.steps[number])
    step.__dict__["generate"] = jax.jit(search_to_end, static_argnames=("samples", "config"))
    return _replaced(program, number, step)


def _replaced(program: programs.Program, number: int, step: Any) -> programs.Program:
    """Return the program with another step of phase ``number``."""
    other = dataclasses.replace(program)
    steps = tuple(step if i == number else x for i, x in enumerate(program.steps))
    other.__dict__.update(steps=steps, setups=tuple(x.setup for x in steps))
    return other


def define_flags() -> None:
    """Define the flags of the commands that decode with a checkpoint."""
    flags.DEFINE_integer("step", None, "Step of the checkpoint; default: the newest.")
    flags.DEFINE_list("allow_code", [], ALLOW_CODE)
    flags.DEFINE_float("shift", 0.0, "Beta: decode by the log-probs plus beta times the least Q of --critics.")
    flags.DEFINE_list("critics", list(CRITICS), "Modules whose logits are Q, for --shift.")
    flags.DEFINE_integer("beams", 0, "Beams of a search over steps; 0: completions are sampled.", lower_bound=0)
    flags.DEFINE_integer("branches", Search.branches, "Continuations of each beam by a step.", lower_bound=1)
    flags.DEFINE_string("delimiter", Search.delimiter, "Text whose tokens each end a step, for --beams.")
    flags.DEFINE_string("critic", Search.critic, "Module whose values choose, for --beams.")


def of_flags(workdir: str, task: str = "") -> tuple[programs.Program, types.Tree, int]:
    """Return ``load`` of a work directory with the flags of ``define_flags``."""
    f = flags.FLAGS
    search = Search(f.beams, f.branches, f.delimiter, f.critic) if f.beams else None
    return load(workdir, task, f.step, f.allow_code, shift=f.shift, critics=f.critics, search=search)


def steered_by() -> str:
    """Return what steers the decoding by the flags, for the name of an evaluation."""
    f = flags.FLAGS
    return f", shift {f.shift:g}" * bool(f.shift) + f", beams {f.beams} x {f.branches}" * bool(f.beams)
