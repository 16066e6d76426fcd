"""Settings: one definition, checked in one place, and phases that set fields for themselves."""

import dataclasses
import functools
import inspect
import pathlib
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

import rljax
from rljax.config import files, resolve, schema
from rljax.host import backends
from rljax.language import parse, settings
from rljax.models.config import ModelConfig, ModuleConfig
from rljax.run import loop, programs
from rljax.training.config import PhaseConfig
from tests.support import tiny

ROOT = pathlib.Path(__file__).parents[2]
FIELDS = [*settings.fields(schema.Config), *settings.fields(PhaseConfig)]
OTHER = "arithmetic(operands=2, digits=2, working=False, noise=0.3)"


# --- the schema --------------------------------------------------------------------------------


@pytest.mark.parametrize("field", FIELDS, ids=lambda f: ".".join(f.path))
def test_every_field_has_a_default_that_fits_and_one_line_of_help(field):
    settings.verify(
        schema.Config if field in FIELDS[: len(FIELDS) - len(list(settings.fields(PhaseConfig)))] else PhaseConfig,
        _nested(field),
        "config",
    )
    assert field.help.endswith(".") and "\n" not in field.help and len(field.help) < 110
    assert field.allowed and isinstance(field.default, bool | int | float | str | tuple)


def _nested(field):
    tree = {}
    settings.put(tree, field.path, field.default)
    return tree


def test_the_config_is_made_of_the_schema_alone():
    config = files.flatten(schema.default())
    fields = {f"config.{'.'.join(f.path)}": f for f in settings.fields(schema.Config)}
    assert {k for k in config if not k.startswith(("config.phase.", "config.module."))} == set(fields)
    module = {
        k.removeprefix("config.module.value."): v for k, v in config.items() if k.startswith("config.module.value.")
    }
    groups = ("kind", "mlp", "denoising", "vision")
    alone = {("vocabulary",), *(f.path for f in settings.fields(ModelConfig) if f.path[0] in groups)}  # the policy's
    unset = dict.fromkeys(f.path[0] for f in settings.fields(ModelConfig) if f.path not in alone)
    given = {f.path[0]: f.default for f in settings.fields(ModuleConfig)}
    assert module == unset | {k: [*v] if isinstance(v, tuple) else v for k, v in given.items()}
    assert all(len(f.help) < 110 for f in settings.fields(ModuleConfig))
    phase = {k.removeprefix("config.phase.main."): v for k, v in config.items() if k.startswith("config.phase.")}
    free = {".".join(f.path) for f in settings.fields(schema.Config) if not f.fixed}
    defaults = {".".join(f.path): f.default for f in settings.fields(PhaseConfig)}
    assert {k for k, v in phase.items() if v is None} == free
    assert {k: v for k, v in phase.items() if v is not None} == defaults


def test_groups_check_themselves():
    with pytest.raises(ValueError, match=r"epochs=0: must be a whole number in \[1, 1e9\]"):
        rljax.training.config.LearnerConfig(epochs=0)
    with pytest.raises(ValueError, match=r"draw='invers': must be one of .*Did you mean 'inverse'"):
        rljax.sampling.SamplerConfig(draw="invers")


@pytest.mark.full
def test_a_new_sampler_field_is_one_line_and_one_where_it_is_read(tmp_path):
    """Edit a copy of the package: one line in the schema, one in the sampler, and the config has the field."""
    shutil.copytree(ROOT / "rljax", tmp_path / "rljax", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    schema_file, reader = tmp_path / "rljax/sampling/config.py", tmp_path / "rljax/sampling/decode.py"
    text, line = schema_file.read_text(), "    cache_block: Size = setting("
    assert line in text
    schema_file.write_text(
        text.replace(line, '    banned: Size = setting(0, "Token that is never drawn; 0: none.")\n' + line)
    )
    text, line = reader.read_text(), "    logits = ops.repeat(model.logits(weights, hidden[:, -1]), samples)\n"
    assert line in text
    reader.write_text(text.replace(line, line + "    logits = logits.at[:, config.banned].set(-jnp.inf)\n"))
    code = (
        "import sys, jax, numpy as np; sys.path.insert(0, '.')\n"
        "from rljax.config import files, resolve\n"
        "from rljax.run import programs\n"
        f"sys.path.insert(1, {str(ROOT)!r})\n"
        "from tests.support import tiny\n"
        "program = tiny.program(sampler__banned=7)\n"
        "step = program.steps[0]\n"
        "rollout = step.rollout(step.begin(None, program.key), program.key)\n"
        "first = np.asarray(rollout.action.token)[:, 0]\n"
        "print('drawn', 7 in first, len(set(first.tolist())) > 3)\n"
        "try: resolve.phases(tiny.config(phase__main__sampler__banned=-1))\n"
        "except ValueError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "drawn False True" in done.stdout, done.stderr
    assert "config.phase.main.sampler.banned=-1: must be a whole number in [0, 1e9]" in done.stdout


# --- phases set fields for themselves -------------------------------------------------------------


def test_a_phase_sets_any_field_that_is_not_fixed():
    config = tiny.phases(
        phase__warm__learner__microbatches=2,
        phase__main__seam__penalty="+ entropy(0.01)",
        phase__main__sampler__temperature=0.7,
        phase__main__task=OTHER,
        phase__main__model__remat="none",
    )
    warm, main = resolve.phases(config)
    assert (warm.settings.learner.microbatches, main.settings.learner.microbatches) == (2, 0)
    assert (warm.settings.sampler.temperature, main.settings.sampler.temperature) == (1.0, 0.7)
    assert main.algorithm.objectives[0].loss[-1].spec.startswith("entropy(coefficient=0.01")
    assert warm.settings.task == config.task and main.settings.task == OTHER
    assert main.settings.model.architecture.remat == "none" and warm.settings.model.architecture.remat == "auto"


@pytest.mark.parametrize(
    ("prompts", "samples", "minibatches", "devices", "expected"),
    [
        (8, 8, 1, 1, 1),  # 8 prompts of 4 + 8 * 3 tokens, 224 in all
        (512, 8, 1, 1, 8),  # 14,336 tokens: 13 parts would do, 8 divide the prompts; 16 leave 896 tokens
        (512, 8, 2, 1, 4),  # in each minibatch
        (512, 8, 1, 2, 4),  # on each device
        (510, 8, 1, 2, 5),  # 6 parts of 85 prompts do not divide over the devices
        (511, 8, 1, 1, 7),
    ],
)
def test_open_micro_batches_have_enough_tokens_on_each_device(prompts, samples, minibatches, devices, expected):
    fields = {"batch__prompts": prompts, "batch__samples": samples, "learner__minibatches": minibatches}
    program = programs.build(tiny.config(**fields), devices=jax.devices()[:devices])
    assert (program.tasks[0].prompt_length, program.tasks[0].completion_length) == (4, 3)
    assert program.setups[0].learner.microbatches == expected
    kept = programs.build(tiny.config(learner__microbatches=1, **fields), devices=jax.devices()[:devices])
    assert kept.setups[0].learner.microbatches == 1


@pytest.mark.parametrize(
    ("fields", "every"),
    [
        ({"model__width": 256}, True),
        ({"model__width": 128}, False),
        ({"model__width": 256, "batch__prompts": 31}, backends.cores() == 1),
        ({"model__width": 256, "phase__main__batch__prompts": 31}, backends.cores() == 1),
        ({"model__width": 256, "mesh__data": 1, "mesh__fsdp": 1}, False),  # no axis takes the remaining devices
        ({"model__width": 256, "mesh__rollout": 1}, False),
    ],
)
def test_a_wide_policy_has_a_device_for_each_core(fields, every):
    count = resolve.parallel(tiny.phases(**{"batch__prompts": 8 * backends.cores(), **fields}))
    assert count == (backends.cores() if every else 1)


def test_activations_are_recomputed_where_a_device_would_keep_too_many():
    def remat(**fields):
        program = programs.build(
            tiny.phases(batch__prompts=2**17, batch__samples=8, **fields), devices=jax.devices()[:2]
        )
        return [program.model("policy", phase).architecture.remat for phase in program.phases]

    assert remat(phase__main__learner__microbatches=1) == ["none", "full"]
    assert remat(phase__main__learner__microbatches=2**16) == ["none", "none"]
    assert remat(model__remat="dots") == ["dots", "dots"]


@pytest.mark.parametrize(
    "field", [".".join(f.path) for f in settings.fields(schema.Config) if f.fixed], ids=lambda name: name
)
def test_what_holds_for_the_run_is_refused_in_a_phase(field):
    message = rf"config\.phase\.main\.{field.split('.')[0]}.*: a phase cannot set .*, which applies to the whole run"
    with pytest.raises(ValueError, match=message):
        files.override(tiny.config(), f"phase.main.{field}", 1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"phase__main__learner__epochs": 0}, r"config\.phase\.main\.learner\.epochs=0: must be a whole number in \[1"),
        ({"phase__main__sampler__draw": "best"}, r"config\.phase\.main\.sampler\.draw='best': must be one of 'gumbel'"),
        ({"phase__main__task": "arithmetics()"}, r"config\.phase\.main\.task: .*Did you mean 'arithmetic'"),
        ({"phase__main__seam__penalty": "kll()"}, r"config\.phase\.main\.seam\.penalty: .*Did you mean 'kl'"),
        (
            {"seam__penalty": "kl()", "phase__main__algorithm": "rloo()"},
            r"config\.seam\.penalty='kl\(\)' edits nothing: every phase sets algorithm",
        ),
    ],
)
def test_a_phase_is_checked_like_the_run(fields, message):
    with pytest.raises(ValueError, match=message):
        resolve.phases(tiny.config(**fields))


def test_old_names_of_sizes_lead_to_the_new_ones():
    with pytest.raises(ValueError, match=r"phase\.prompts: unknown field\. Use phase\.batch\.prompts"):
        rljax.phase(prompts=4)
    with pytest.raises(ValueError, match=r"phase\.prompts: unknown field\. Use phase\.batch\.prompts"):
        files.from_dict({"phase": {"main": {"prompts": 4}}})
    with pytest.raises(ValueError, match=r"config\.sampler\.block: unknown field\. .*cache_block"):
        files.from_dict({"sampler": {"block": 2}})


# --- phase boundaries -------------------------------------------------------------------------------


def curriculum(**fields):
    """Return a config of three phases: a task, another one, and the first again; rows in flight in the last two."""
    config = tiny.phases(phases=("warm", "other", "main"), **fields)
    config.phase.other = rljax.phase(steps=2, warmup=1, task=OTHER, evaluate="other")
    config.phase.main.update({"steps": 2, "evaluate": ""})
    return config


@pytest.mark.full
def test_the_vocabulary_is_that_of_all_phases():
    config = tiny.phases(phase__main__task="countdown(numbers=3)", mesh__data=1)
    first, second = resolve.phases(config)
    program = programs.build(config, devices=jax.devices()[:1])
    for task in (first.task, second.task):
        for text in task.corpus():
            assert program.tokenizer.unk not in program.tokenizer.encode(text)
    assert [t.name for t in program.tasks] == ["arithmetic", "countdown"]


@pytest.mark.full
def test_each_task_keeps_its_cursor_and_an_evaluation_names_its_task(whole):
    _, result = whole
    assert result.state.cursor.tolist() == [2 * 16 + 16, 16]  # warm-up and main, other: whose rows take two steps
    first = tiny.config().task
    assert [e["task"] for e in result.evaluations] == [first, OTHER]
    lengths = [p.task.completion_length for p in result.program.setups]
    assert lengths[0] == lengths[2] != lengths[1]


def handover(**fields):
    """Return the program of two phases, the second with ``fields``; the first one is the same in all."""
    config = tiny.config(phases=("first", "main"), mesh__data=1, seam__source="partial(segment=2, oversample=2)")
    config.phase.first = rljax.phase(steps=2, warmup=1)
    config.phase.main.reset_optimizer = False
    return programs.build(tiny.edited(config, fields), devices=jax.devices()[:1])


@functools.cache
def ended():
    """Return the state at the end of the first phase."""
    program = handover()
    state = program.steps[0].begin(None, program.key)
    for _ in range(2):
        state, _ = program.steps[0].fused(state, program.key)
    return jax.device_get(state)


def carried(**fields):
    """Return the second phase's step, the state at the end of the first phase, and that after it."""
    program = handover(**fields)
    first, second = program.steps
    state = jax.device_put(ended(), first.sharding)
    return second, ended(), jax.device_get(second.begin(state, program.key))


@pytest.mark.full
def test_equal_task_lengths_and_source_carry_rows_in_flight():
    step, before, after = carried()
    jax.tree.map(np.testing.assert_array_equal, after.pool, before.pool)
    jax.tree.map(np.testing.assert_array_equal, after.opt_state, before.opt_state)
    assert step.notes == () and not np.all(before.pool["free"])


@pytest.mark.full
@pytest.mark.parametrize(
    "fields",
    [{"phase__main__seam__source": "partial(segment=3, oversample=2)"}, {"phase__main__task": OTHER}],
    ids=["source", "task"],
)
def test_another_task_or_source_starts_with_no_rows_in_flight(fields):
    _, before, after = carried(**fields)
    assert np.all(after.pool["free"]) and not np.all(before.pool["free"])


@pytest.mark.full
def test_another_optimizer_is_reset_and_said_so():
    step, _, after = carried(phase__main__optimizer="sgd(0.1)")
    assert len(step.notes) == 1 and "'main': the optimizer state of 'policy' is reset although" in step.notes[0]
    fresh = jax.tree.leaves(after.opt_state)
    assert all(not np.any(x) for x in fresh)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Return the work directory and the result of a run of three phases that keeps every checkpoint."""
    folder = tmp_path_factory.mktemp("curriculum") / "whole"
    return folder, loop.train(stored(), folder, progress=False, devices=jax.devices()[:1])


@pytest.mark.full
def test_a_picture_that_cannot_be_written_does_not_fail_a_finished_run(whole, tmp_path):
    again = tmp_path / "again"
    shutil.copytree(whole[0], again)
    (again / "learning_curve.png").mkdir()
    with pytest.warns(loop.PictureWarning, match="learning_curve.png was not written"):
        config = tiny.edited(stored(), {"log__report": True})
        loop.train(config, again, allow_config_change=True, progress=False, devices=jax.devices()[:1])
    assert (again / "passk.png").is_file() and (again / "learning_curve.png").is_dir()


@pytest.mark.full
def test_a_tokenizer_that_is_not_that_of_the_checkpoint_is_refused(whole, tmp_path):
    again = tmp_path / "again"
    shutil.copytree(whole[0], again)
    data = bytearray((again / "tokenizer.model").read_bytes())
    one, two = (data.index(b"\n\x01" + digit + b"\x15") + 2 for digit in (b"1", b"2"))  # pieces of one character
    data[one], data[two] = data[two], data[one]
    (again / "tokenizer.model").write_bytes(data)
    message = "tokenizer.model: differs from the tokenizer in the checkpoint of step"
    with pytest.raises(ValueError, match=message):
        loop.train(stored(), again, progress=False, devices=jax.devices()[:1])
    assert (again / "tokenizer.model").read_bytes() == data
    with pytest.raises(ValueError, match=message):
        loop.train(tiny.edited(stored(), {"checkpoint__init": str(again)}), progress=False, devices=jax.devices()[:1])


def stored():
    fields = {"checkpoint__every": 1, "checkpoint__max_to_keep": 9, "seam__source": "partial(segment=2, oversample=2)"}
    return curriculum(mesh__data=1, **fields)


@pytest.mark.full
@pytest.mark.parametrize("stop", [3, 4], ids=["inside a phase", "at a boundary"])
def test_a_run_resumed_from_a_checkpoint_is_the_run_undisturbed(whole, tmp_path, stop):
    folder, result = whole
    again = tmp_path / "again"
    shutil.copytree(folder, again)
    for checkpoint in (again / "checkpoints").iterdir():  # as if it had been killed after this step
        if checkpoint.name.isdigit() and int(checkpoint.name) > stop:
            shutil.rmtree(checkpoint)
    resumed = loop.train(stored(), again, progress=False, devices=jax.devices()[:1])
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(resumed.state), jax.device_get(result.state))
    for name in ("metrics.jsonl", "evaluations.jsonl", "rollouts.jsonl"):
        assert (again / name).read_bytes() == (folder / name).read_bytes(), name


@dataclasses.dataclass(frozen=True)
class Sizes:
    """A group."""

    width: settings.Count = settings.setting(4, "Units.")
    depth: settings.Count = settings.setting(2, "Layers.")

    __post_init__ = settings.check


@settings.flat
def built(name: str, sizes: Sizes = Sizes(depth=3), *, seed: int = 0) -> tuple[str, Sizes, int]:
    """Return the arguments.

    Args:
      name: of it.
      sizes: its size.
      seed: of it.
    """
    return name, sizes, seed


def test_a_function_has_the_fields_of_its_groups_as_arguments():
    assert [*inspect.signature(built).parameters] == ["name", "width", "depth", "seed"]
    assert built("a") == ("a", Sizes(4, 3), 0) and built("a", 5, seed=1) == ("a", Sizes(5, 3), 1)
    assert built.__doc__ is not None and "  width: Units.\n  depth: Layers.\n  seed: of it." in built.__doc__
    with pytest.raises(ValueError, match="depth=0: must be a whole number"):
        built("a", depth=0)
    with pytest.raises(ValueError, match=r"x: built\(\) has no argument 'dept'. Did you mean 'depth'"):
        parse.invoke(built, "built", ["a"], {"dept": 1}, "x")
    with pytest.raises(ValueError, match=r"built\(width='5'\): width must be a whole number"):
        parse.invoke(built, "built", ["a", "5"], {}, "x")
