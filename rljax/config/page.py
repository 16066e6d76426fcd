"""List the fields of a config.

python -m rljax config              all fields, with default, allowed values and meaning
python -m rljax config sampler      the fields whose name contains "sampler"
python -m rljax config --page       the page of all fields, configs/README.md
"""

import sys
from collections.abc import Iterable, Sequence

from absl import flags
from rich import box, console, table

from rljax.config import schema
from rljax.language import settings
from rljax.models.config import ModuleConfig
from rljax.training.config import PhaseConfig

_HEAD = """# Configs

A config is a short Python file with `get_config(arg)`, which returns `rljax.default_config()` with some fields
changed. Its header states the command, the hardware, the time and the score.

| config | what it is |
| --- | --- |
| [quickstart.py](quickstart.py) | two-digit addition, from random weights, in minutes on a CPU |
| [ppo.py](ppo.py) | the quickstart with PPO: a critic trained alone, then beside the policy |
| [countdown.py](countdown.py) | reach a target number with an arithmetic expression |
| [calculator.py](calculator.py) | arithmetic of several steps that the policy learns to do by calling a tool |
| [gsm8k.py](gsm8k.py) | GSM8K from random weights; answers verified by worker processes |
| [own_data.py](own_data.py) | your own rows and your own reward |
| [pretrained.py](pretrained.py) | a published checkpoint on GSM8K or MATH |

Fields are set in the file, on the command line (`--config.learner.epochs=2`), or with `--set`, which also reaches the
arguments of a call (`--set algorithm.kl=0.01`). `python -m rljax config TEXT` lists the fields whose name contains
TEXT. An unknown field or an invalid value is an error before any device work; the message names the field and the
allowed values. NaN is never valid, and infinity only where a range ends in `inf]`.

A call names a function of rljax's tables, or by a dotted path a function or class of yours under a decorator:
`@algorithms.recipe`, `@environments.task`, one of `rljax.transforms.define`, or `@optimizers.optimizer` of
`rljax.training`. Its module must import rljax. Nothing else is imported or called.

## Phases

A run is a sequence of phases (`config.phases`). Each phase has the fields of the section "phase" below, and may
override any field of the run that is not marked *run*: `config.phase.main.task`,
`config.phase.warm.learner.microbatches`, `config.phase.main.seam.penalty`, `config.phase.main.sampler.temperature`. A
field that a phase does not set has the run's value. If a phase sets `algorithm`, its `seam` edits that algorithm and
`config.seam` does not.

At a phase boundary the parameters and the cursor of each task carry over. Unfinished rows carry over if task, lengths
and source are unchanged. With `reset_optimizer=False` the optimizer state of each module carries over, if the previous
phase trained the module and the tree of the state is unchanged; otherwise it is reset, which the log and
`algorithm.txt` report. The tokenizer is trained on the text of all tasks. The record of an evaluation names its
task.

## Modules

The policy's network is `config.model`. Critics, reward models and teachers are modules beside it:
`config.module.value`, `config.module.reward`, and any other name that a piece or a recipe reads, such as
`config.module.judge = rljax.module(...)`. A module has the network of the one that it is `like`, with the fields of
`config.model` that it sets itself, such as `config.module.reward.layers=1`. It starts from a folder, from the
parameters of the module that it is like, or at random; its head is one number at each position where values or rewards
of it are read, logits where log-probs are. A phase trains the modules of its algorithm's objectives; those that it only
reads are frozen, without optimizer state. `python -m rljax convert RUN --module=reward --target=FOLDER` writes one.

A reward model is trained by a phase of `bradley_terry()`, `reward_classifier()` or `reward_regression()`, and pays the
policy in a later one by the reward piece `learned()`:

```python
config.phases = ("warm", "reward", "main")
config.phase.reward = rljax.phase(algorithm="bradley_terry()", steps=150)
config.phase.main.seam.reward = "learned()"
```

`implicit_bradley_terry()` trains a language model in its place, whose reward is beta sum log(model / reference). It
starts as the policy, needs no head, and learns faster where the policy knows much of the answer; `implicit()` pays the
row by it, or by several, as `learned()` does. A KL in the reward keeps the policy near the rows that the model was
trained on ([experiments/reward_model](../experiments/reward_model/README.md),
[experiments/overoptimisation](../experiments/overoptimisation/README.md)):

```python
config.phase.reward = rljax.phase(algorithm="implicit_bradley_terry(center=0.01)", steps=80)
config.phase.main.seam.reward = "implicit() | kl(coefficient=1.0)"
```

A judge needs no head either. A module with `words=(yes, no)` has log p(yes) - log p(no) of the next token behind the
text `after` as its reward; `judged()` pays the probability of yes, or verdicts drawn from it, and the phases above
train it. `prompt` and `after` are texts that a module reads behind the prompt and behind the completion. `{solution}`
in them is the task's demonstration, without mistakes where the task knows them: for a judge that knows the answer, for
a critic that sees more than the policy (`config.module.value = rljax.module(prompt="{solution}")`), and for
`likelihood()`, which pays a thought by how likely the solution is behind it. `cut` is what separates thought and
answer:

```python
config.module.judge = rljax.module(after=" Is this right? ", words=("yes", "no"))
config.phase.reward = rljax.phase(algorithm="reward_classifier(module='judge')", steps=80)
config.phase.main.seam.reward = "judged()"
config.module.scorer = rljax.module(follows="policy", rate=1.0, cut="####", after="####{solution}")
```

A process reward model is trained on labelled steps by `process_reward_model()`, whose labels are the signs of rewards
that the task pays where a step ends, or by `math_shepherd()`, which labels a step by the samples that continue it. It
pays the row by `process(combine="minimum")`, the product, minimum or last of its probabilities that the steps are
right, or each step by `process_steps()`. The evaluation of a phase that trains or reads it has its held-out accuracy:

```python
config.task = "arithmetic(step_reward=1.0)"
config.phase.reward = rljax.phase(algorithm="process_reward_model()", steps=80)
config.phase.main.seam.reward = "process()"
```

A token reward model is trained beside the policy by `oreal(module="token_reward")`: the mean of its scores before the
tokens explains whether the row is right, and its running mean weighs the tokens. It has its own network, or is a head
by `config.module.token_reward = rljax.module(trunk="policy", stop_trunk=True)`.

A teacher of the same tokenizer is distilled by `gkd(...)`, from its whole distributions, by
`on_policy_distillation(...)`, from its log-probs of the sampled tokens, or beside rewards by the penalty
`distillation(...)`. Several teachers are averaged. With `top=32` the 32 most probable tokens of one teacher are stored
with the rows, and all others count as one token: the divergence is at most the whole one, the teacher is read once for
a rollout, and it may read another prompt than the policy:

```python
config.module.teacher = rljax.module(weights="FOLDER")
config.algorithm = "gkd(('teacher',), 'reverse_kl')"
```

A critic is trained by recipes that read values, such as `ppo()`, and alone by a phase of `critic_warmup()`, which
leaves the policy as it is. It starts from the policy's parameters, or from the parameters of the module that
`config.module.value.like` names, such as a reward model. Its objective may have other epochs and another optimizer than
the policy's: `ppo(critic_epochs=2, critic_optimizer='adamw(learning_rate=1e-3)')`. With `value_range=(-0.25, 1.25)` its
value is the mean of a distribution over bins in that range (`value_histogram`), and its head has one logit for each
bin; all phases that train it need the same range. `value/explained_variance` and `value/bias_early`, `_middle` and
`_late` say how well it predicts. [ppo.py](ppo.py) trains one alone first.

A critic or a reward model may be a head on another module's trunk instead of a network of its own, and one trunk may
have several heads:

```python
config.module.value = rljax.module(trunk="policy", trunk_weight=0.5)
```

The loss of the head, times `trunk_weight`, is then in the gradient of the trunk, which one optimizer updates; both need
the same epochs and minibatches. With `stop_trunk=True` no gradient of the head enters the trunk: it has gradient steps
of its own, with any epochs and optimizer, and reads the trunk once more. In a phase that does not train the trunk, the
head alone is trained. A head starts at 0, or from random numbers with `weights="random"`.

A module may follow another: it starts as a copy of it and becomes (1 - rate) of itself + rate of the other after every
update that is not skipped. Nothing trains it, and pieces read it as any frozen module; it is float32. Twin critics
bootstrap from the least value of two such targets:

```python
config.algorithm = "twin_critics(bootstrap=('value_target', 'value_2_target'))"
config.module.value_2 = rljax.module(weights="random")
config.module.value_target = rljax.module(follows="value", rate=0.005)
config.module.value_2_target = rljax.module(follows="value_2", rate=0.005)
```

## Fields

*run* marks a field that applies to the whole run; a phase cannot set it.
"""


def _fields() -> list[settings.Field]:
    """Return all fields of a config; fields of phases begin with "phase.NAME", fields of modules with "module.NAME"."""
    phase = [settings.Field(("phase", "NAME", *f.path), *_rest(f)) for f in settings.fields(PhaseConfig)]
    module = [settings.Field(("module", "NAME", *f.path), *_rest(f)) for f in settings.fields(ModuleConfig)]
    return [*settings.fields(schema.Config), *phase, *module]


def _rest(field: settings.Field) -> tuple:
    return field.hint, field.default, field.help, field.fixed


def _name(field: settings.Field) -> str:
    return ".".join(field.path)


def page() -> str:
    """Return the text of configs/README.md."""
    groups: dict[str, list[settings.Field]] = {}
    for field in _fields():
        groups.setdefault(".".join(field.path[:-1]), []).append(field)
    lines = [_HEAD]
    for name, fields in groups.items():
        lines += [
            f"### {name or 'the run'}",
            "",
            "| field | default | allowed | meaning |",
            "| --- | --- | --- | --- |",
        ]
        for f in fields:
            mark = " *run*" if f.fixed else ""
            cells = f"`{f.path[-1]}`{mark}", f"`{f.default!r}`", f.allowed, f.help
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)


def show(fields: Iterable[settings.Field] = ()) -> None:
    """Print fields as a table; every field where none is given."""
    output = table.Table(box=box.SIMPLE_HEAD)
    for heading in ("config.", "default", "allowed", "meaning"):
        output.add_column(heading, overflow="fold")
    for f in fields or _fields():
        output.add_row(_name(f), repr(f.default), f.allowed, f.help)
    console.Console(width=None if sys.stdout.isatty() else 160, markup=False, highlight=False).print(output)


def define_flags() -> None:
    """Define the flags of this command."""
    flags.DEFINE_boolean("page", False, "Print configs/README.md.")


def main(argv: Sequence[str]) -> None:
    """Print the fields whose name contains the argument, or the page."""
    if len(argv) > 2:
        raise ValueError(f"expected at most one text, got {' '.join(argv[1:])}")
    if flags.FLAGS.page:
        print(page(), end="")
        return
    text = argv[1] if len(argv) == 2 else ""
    fields = [f for f in _fields() if text in _name(f)]
    if not fields:
        raise ValueError(f"no name of a field contains {text!r}")
    show(fields)
