"""The config language, what resolving checks, and the errors it gives: seams; phases, edits, files."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import jax
import pytest

from rljax import algorithms, environments, transforms, types
from rljax.algorithms import seams
from rljax.config import files, resolve, schema
from rljax.language import parse
from rljax.run import programs
from tests.config.config_cases import loss_of, main, resolved
from tests.support import tiny

CONFIGS = sorted(p.stem for p in (pathlib.Path(__file__).parents[2] / "configs").glob("*.py") if p.stem[0] != "_")


# --- seams ----------------------------------------------------------------------------


RATIO, CLIP = "token(anchor='proximal', limit=None)", "clip(low=0.2, high=0.2, dual=None)"


def test_a_seam_keeps_replaces_appends_and_removes():
    rest = "reduce=None, against='reference', correction=None, only=None)"
    k3, entropy = f"kl(estimator='k3', coefficient=0.04, {rest}", "entropy(coefficient=0.001, reduce=None, only=None)"
    assert loss_of(algorithm="grpo()") == [RATIO, CLIP, k3]
    assert loss_of(algorithm="grpo()", seam__penalty="entropy()") == [RATIO, CLIP, entropy]
    assert loss_of(algorithm="grpo()", seam__penalty="+ entropy()") == [RATIO, CLIP, k3, entropy]
    assert loss_of(algorithm="grpo()", seam__penalty="none") == [RATIO, CLIP]
    assert loss_of(seam__penalty="entropy() | kl(coefficient=0.04)") == [RATIO, CLIP, entropy, k3]
    a = main(seam__advantage="+ whiten()", seam__reward="affine(2.0)", seam__reduce="sum_over_tokens()")
    assert [p.seam for p in a.transforms] == ["reward", "advantage", "advantage", "advantage"]
    assert a.transforms[-1].spec == "whiten(epsilon=1e-08, key='batch')"
    assert a.objectives[0].reduce.spec == "sum_over_tokens(divisor=1.0)"
    assert main(seam__source="dynamic(3)").source.oversample == 3
    prepared = main(seam__prepare="keep('wrong') | drop_truncated()").objectives[0].prepare
    assert [p.spec for p in prepared] == ["keep(predicate='wrong')", "drop_truncated(key=None)"]


def test_the_seams_of_a_loss_keep_their_order():
    fields = {"seam__penalty": "entropy()", "seam__weight": "truncated_importance()"}
    for order in (fields, dict(reversed(fields.items()))):
        seams_of = [p.seam for p in main(**order).objectives[0].loss]
        assert seams_of == ["ratio", "surrogate", "weight", "penalty"]


def test_pieces_of_no_seam_and_the_order_of_a_recipe_survive_an_edit():
    def unseamed(spec):
        return types.RolloutTransform(lambda rollout, state, key: (rollout, state), spec=spec)

    plain = algorithms.reinforce()
    mine = algorithms.compose(
        reward=[*plain.transforms],
        advantage=[unseamed("own")],
        loss=plain.objectives[0].loss,
        reduce=plain.objectives[0].reduce,
    )
    fields = dict.fromkeys(transforms.SEAMS, "")
    assert seams.edited(mine, fields) == mine
    edited = seams.edited(mine, {**fields, "reward": "affine()", "advantage": "leave_one_out()"})
    assert [p.spec.partition("(")[0] for p in edited.transforms] == ["affine", "leave_one_out", "own"]


def test_pieces_nest_reductions_schedules_branches_and_chains():
    spec = "kl(estimator='k3', coefficient=cosine(start=0.1, end=0.0, steps=5), "
    spec += "reduce=mean_over_rows(empty='skip', per='trajectory'), against='reference', correction=None, only=None)"
    assert loss_of(seam__penalty="kl(coefficient=cosine(0.1, 0.0, 5), reduce=mean_over_rows())")[-1] == spec
    spec = "where('wrong', chain(entropy(coefficient=0.1, reduce=None, only=None), " + spec + "), " + spec + ")"
    assert loss_of(seam__penalty=spec)[-1] == spec
    piece = main(seam__penalty=spec).objectives[0].loss[-1]
    assert piece.needs == types.Needs(entropy=True, reference=True) and len(piece.statistics) == 2


def test_a_phase_with_its_own_algorithm_ignores_the_seams():
    phases = resolved(seam__penalty="entropy()")
    assert [p.spec for p in phases[0].algorithm.objectives[0].loss] == ["likelihood()"]
    assert phases[1].algorithm.objectives[0].loss[-1].seam == "penalty"


# --- phases, edits, files -------------------------------------------------------------


def test_phases_follow_one_another():
    run = resolved(phase__warm__steps=3, phase__main__steps=5)
    sizes = [(p.settings.batch.prompts, p.settings.batch.samples) for p in run]
    assert [(p.name, p.first, p.last) for p in run] == [("warm", 0, 3), ("main", 3, 8)]
    assert sizes == [(16, 1), (8, 4)]  # demonstrations: one of each prompt
    program = programs.build(
        tiny.phases(phase__warm__steps=3, phase__main__steps=5, mesh__data=1), None, jax.devices()[:1]
    )
    assert program.updates == 8 and [program.number(s) for s in (0, 2, 3, 7, 8)] == [0, 0, 1, 1, 1]


def test_override_sets_fields_and_arguments():
    config = tiny.config("grpo")
    files.override(config, "algorithm.kl", 0.5)
    files.override(config, "algorithm.high", 0.28)
    files.override(config, "algorithm.kl", 0.25)
    assert config.algorithm == "grpo(high=0.28, kl=0.25)"
    files.override(config, "phase.main.optimizer.learning_rate", 0.01)
    assert config.phase.main.optimizer == "adamw(weight_decay=0.0, learning_rate=0.01)"
    files.override(config, "model.width", 64)
    files.override(config, "sampler.temperature", 2)  # a whole number where a float stands
    assert config.model.width == 64 and config.sampler.temperature == 2.0
    resolve.phases(config)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("algoritm", "grpo()", "config.algoritm: unknown field. Did you mean 'algorithm'"),
        ("model.layer", 1, "config.model.layer: unknown field. Did you mean 'layers'"),
        ("phase.man.steps", 1, "config.phase.man: unknown field. Did you mean 'main'"),
        ("phases.main.steps", 1, "config.phases.main.steps: unknown field. Did you mean config.phase.main.steps?"),
        ("phases.main.step", 1, "config.phase.main.step: unknown field. Did you mean 'steps'"),
        ("seed.x", 1, "config.seed.x: unknown field"),
        ("algorithm.kl.coefficient", 1, "'kl' is not a call, so it has no 'coefficient'"),
        ("seed", "a", "config.seed='a': must be of type int"),
        ("batch", 3, "config.batch=3: must be of type ConfigDict"),
        ("seam.penalty.coefficient", 1, "config.seam.penalty='': not a call"),
        ("task.digits", 3, "as keywords in order to set 'digits'"),
    ],
)
def test_override_refuses_what_is_not_there(field, value, message):
    config = tiny.config()
    config.task = "arithmetic(2)"
    with pytest.raises(ValueError, match=message.replace("(", r"\(")):
        files.override(config, field, value)


def test_with_argument_replaces_appends_and_keeps_the_rest():
    assert parse.with_argument("nsr()", "low", 0.1, "f") == "nsr(low=0.1)"
    assert parse.with_argument("a.b(x=1, y=c(2))", "x", "s", "f") == "a.b(y=c(2), x='s')"
    assert parse.with_argument("f", "x", (1, None), "f") == "f(x=(1, None))"
    with pytest.raises(ValueError, match=r"f='nsr\(0\.1\)': write its arguments"):
        parse.with_argument("nsr(0.1)", "low", 0.2, "f")


def test_a_config_survives_json():
    config = tiny.phases("ppo()", seam__penalty="+ kl('k1')", mesh__fsdp=2, sampler__top_p=0.9)
    config.phase.main.steps = 77
    again = files.from_dict(json.loads(files.dumps(config)))
    assert files.differences(config, again) == []
    assert again.phases == ("warm", "main") and again.phase.main.steps == 77
    again.model.width = 8
    del again.phase["warm"]
    lines = files.differences(config, again)
    assert "config.model.width: 32 -> 8" in lines and "config.phase.warm.steps: 2 -> None" in lines
    assert files.from_dict({"seed": 3}).seed == 3  # what an older run did not store gets its default
    assert files.differences(files.from_dict({}), schema.default()) == []


@pytest.mark.parametrize("name", CONFIGS)
def test_shipped_configs_resolve(name):
    for argument in ("", "quick"):
        config = files.load(name, argument)
        try:
            resolve.phases(config)
        except ValueError as error:
            if name not in ("gsm8k", "own_data", "pretrained") or "no such file or folder" not in str(error):
                raise
            pytest.skip(f"the files are not here: {error}")


def test_shipped_configs_are_found_by_name_and_path(tmp_path):
    assert files.find("quickstart").endswith("quickstart.py")
    assert files.find("configs/quickstart.py").endswith("quickstart.py")
    with pytest.raises(
        ValueError, match=r"config 'quickstrat': no such file.*Did you mean 'quickstart'\? Valid: .*quickstart"
    ):
        files.find("quickstrat")
    with pytest.raises(ValueError, match=r"mine/quickstart\.py': no such file"):  # of another folder
        files.find("mine/quickstart.py")
    with pytest.raises(ValueError, match="only variant is 'quick'"):
        files.load("quickstart", "slow")
    path = tmp_path / "own.py"
    fields = "import dataclasses\n\n@dataclasses.dataclass\nclass Mine:\n    width: int = 8\n\n"
    imports = "from __future__ import annotations\nfrom rljax import config\n" + fields
    path.write_text(imports + "def get_config(arg=''):\n    return config.default()\n")
    assert files.differences(files.load(str(path)), schema.default()) == []


def test_every_task_of_the_table_can_be_imported():
    registry = parse.Registry("task", environments.TASKS)
    names = set(environments.TASKS)
    if importlib.util.find_spec("reasoning_gym") is None:
        names.remove("gym")
        with pytest.raises(ValueError, match=r"gym needs reasoning-gym: pip install reasoning-gym"):
            parse.lookup("gym", registry, "task")
    assert all(callable(parse.lookup(name, registry, "task")) for name in names)


def test_resolving_starts_no_device():
    code = "from rljax.config import resolve, schema; resolve.phases(schema.default()); print('resolved')"
    code += "; import jax; jax.devices()"
    env = {**os.environ, "JAX_PLATFORMS": "nowhere"}
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert ran.stdout == "resolved\n" and "nowhere" in ran.stderr  # what asks for a device fails, after resolving
