"""Strings and runs that try to execute code, and fuzzed strings: nothing is executed, and each error is one line."""

import base64
import importlib
import json
import pickle
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import types
from rljax.config import files, resolve
from rljax.data import tokenizers
from rljax.language import dotted
from rljax.run import convert, loop
from rljax.run.evaluation import loading
from rljax.run.records import checkpoints
from tests.language.hostile_cases import commands
from tests.support import tiny

STUDY_NAME = "study_of_test_hostile"


# --- strings --------------------------------------------------------------------------


# A module of somebody else, which leaves a trace when it is imported, and a package like it.
SNEAKY = (
    "import os\nos.makedirs({trace!r}, exist_ok=True)\ndef f(*a, **k):\n    os.makedirs({trace!r}, exist_ok=True)\n"
)


# A module of a study: importing it is harmless, and its functions leave a trace.
STUDY = """
import os
from rljax import algorithms, environments, types
from rljax.transforms import define

def unmarked(*arguments, **named):
    os.makedirs({trace!r}, exist_ok=True)

@staticmethod
def decorated(*arguments, **named):
    os.makedirs({trace!r}, exist_ok=True)

@environments.task
def task(**named):
    os.makedirs({trace!r}, exist_ok=True)

@algorithms.recipe
def recipe(power: types.Positive = 1.0):
    os.makedirs({trace!r}, exist_ok=True)

class Lazy:
    def __getattr__(self, name):
        return lambda *a: os.makedirs({trace!r}, exist_ok=True)

lazy = Lazy()
"""


PICKLE = "cos\nmkdir\n(V{trace}\ntR."


# Functions that would leave a trace if a config could call them; {trace} is the folder they would make.
CALLS = (
    "os.mkdir('{trace}')",
    "os.makedirs('{trace}')",
    "os.system('mkdir {trace}')",
    "posix.mkdir('{trace}')",
    "subprocess.run(('mkdir', '{trace}'))",
    "subprocess.getoutput('mkdir {trace}')",
    "shutil.copytree('{source}', '{trace}')",
    "pickle.loads({pickle!r})",
    "timeit.timeit('import os; os.mkdir(\"{trace}\")', number=1)",
    "code.interact('', lambda: exec('import os'))",
    "runpy.run_module('sneaky')",
    "builtins.exec('import os; os.mkdir(\"{trace}\")')",
    "importlib.import_module('sneaky')",
    'sympy.sympify(\'__import__("os").mkdir("{trace}")\')',
    'sympy.parsing.sympy_parser.parse_expr(\'__import__("os").mkdir("{trace}")\')',
    "yaml.unsafe_load('!!python/object/apply:os.mkdir [{trace}]')",
    "cloudpickle.loads({pickle!r})",
    "numpy.testing.runstring('import os; os.mkdir(\"{trace}\")', {{}})",
    "numpy.f2py.compile('')",
    "setuptools.setup()",
    "pip.main(('list',))",
    "IPython.start_ipython(())",
    "matplotlib.pyplot.figure()",
    "etils.epath.Path('{trace}').mkdir()",
    "rljax.data.storage.make('{trace}')",
    "rljax.data.storage.write('{trace}', b'')",
    "rljax.config.files.load('{file}')",
    "rljax.run.members.sweep.load('{file}')",
    "rljax.run.members.sweep.importlib.import_module('sneaky')",
    "rljax.host.workdirs.WorkDirectory('{trace}')",
    "rljax.run.records.metrics.Logger('{trace}')",
    "rljax.environments.lookup('arithmetic')",
    "sneaky.f()",
    "sneaky_package.module.f()",
    "sneaky_package.__main__.f()",
    "_sneaky.f()",
    "__main__.f()",
    "tests.language.test_hostile.os.mkdir('{trace}')",
    "study_of_test_hostile.unmarked()",
    "study_of_test_hostile.decorated()",
    "study_of_test_hostile.os.mkdir('{trace}')",
    "study_of_test_hostile.lazy.f()",
    "study_of_test_hostile.Lazy()",
)


FORMS = {  # how a call may be written into a field
    "whole": {
        "task": "{call}",
        "algorithm": "{call}",
        "seam.penalty": "+ {call}",
        "phase.main.optimizer": "{call}",
        "phase.main.seam.source": "{call}",
    },
    "argument": {
        "task": "arithmetic(digits={call})",
        "algorithm": "grpo(kl={call})",
        "seam.penalty": "kl('k3', {call})",
        "phase.main.optimizer": "sgd({call})",
        "phase.main.seam.source": "dynamic({call})",
    },
    "inside": {
        "task": "study_of_test_hostile.recipe({call})",
        "algorithm": "study_of_test_hostile.task({call})",
        "seam.penalty": "where('wrong', chain({call}))",
        "phase.main.optimizer": "clip(1.0) | chain(sgd(0.1), {call})",
        "phase.main.task": "({call}).f",
    },
}


@pytest.fixture
def trace(tmp_path, monkeypatch):
    """Return the folder that attempts would make; modules of a study and of somebody else can be imported."""
    trace = tmp_path / "trace"
    package = tmp_path / "sneaky_package"
    package.mkdir()
    for path in ("sneaky", "_sneaky", "sneaky_package/__init__", "sneaky_package/module", "sneaky_package/__main__"):
        (tmp_path / f"{path}.py").write_text(SNEAKY.format(trace=str(trace)))
    (tmp_path / "study_of_test_hostile.py").write_text(STUDY.format(trace=str(trace)))
    monkeypatch.syspath_prepend(tmp_path)
    yield trace
    for name in [n for n in sys.modules if n.lstrip("_").startswith(("sneaky", "study_of_test_hostile"))]:
        del sys.modules[name]


def filled(call, trace):
    fields = {"trace": str(trace), "source": str(trace.parent / "sneaky_package"), "file": f"{trace.parent}/sneaky.py"}
    return call.format(pickle=PICKLE.format(trace=trace).encode(), **fields)


@pytest.mark.parametrize("form", ["whole", *(pytest.param(f, marks=pytest.mark.full) for f in ("argument", "inside"))])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.partition("(")[0])
def test_a_string_executes_nothing(call, form, trace):
    call, config = filled(call, trace), tiny.config()
    for field, text in FORMS[form].items():
        changed = config.copy_and_resolve_references()
        files.override(changed, field, text.format(call=call))
        with pytest.raises(ValueError, match="config") as caught:
            resolve.phases(changed)
        assert not trace.exists() and "\n" not in str(caught.value)


WORKING = [
    c for c in CALLS if c.startswith(("os.", "subp", "sym", "yaml", "numpy.testing", "sneaky", "pickle", "study"))
]


@pytest.mark.full
@pytest.mark.parametrize("call", WORKING, ids=lambda call: call.partition("(")[0])
def test_the_attempts_would_succeed_if_they_were_called(call, trace):
    """The test above proves something only if these calls do what they say."""
    path, _, _ = call.partition("(")
    names = {}
    for i in range(1, path.count(".") + 1):
        try:
            names[path.split(".")[0]] = importlib.import_module(path.split(".")[0])
            importlib.import_module(".".join(path.split(".")[:i]))
        except ImportError:
            break
    try:
        eval(filled(call, trace), names)
    except (AttributeError, TypeError, SyntaxError):
        pass
    assert trace.exists() or path in ("study_of_test_hostile.decorated", "study_of_test_hostile.Lazy")


def test_a_mark_is_on_the_object_itself(trace):
    class Base:
        pass

    class Derived(dotted.mark(Base, "task")):
        pass

    class Any:
        def __getattr__(self, name):
            return "task"

    assert dotted.marked(Base, "task") and not dotted.marked(Base, "recipe")
    assert not dotted.marked(Derived, "task") and not dotted.marked(Any(), "task") and not dotted.marked(3, "task")


def test_the_kind_of_the_mark_is_that_of_the_field(trace):
    for field, text in (("task", "study_of_test_hostile.recipe()"), ("algorithm", "study_of_test_hostile.task()")):
        config = tiny.config()
        files.override(config, field, text)
        with pytest.raises(
            ValueError, match=rf"config\.{field}: .* is not a {'task' if field == 'task' else 'recipe'}"
        ):
            resolve.phases(config)
    assert not trace.exists()
    config.algorithm = "study_of_test_hostile.recipe()"  # of its kind: called
    with pytest.raises(ValueError, match="recipe"):
        resolve.phases(config)
    assert trace.exists()


# --- runs of somebody else ------------------------------------------------------------


BYTES = tokenizers.make("bytes", ()).serialized


def foreign(folder, tokenizer=BYTES, **fields):
    """Write a checkpoint whose config has these fields; what is refused is refused before its arrays are read."""
    config = tiny.phases()
    for field, text in fields.items():
        files.override(config, field.replace("__", "."), text)
    zero = jnp.zeros(1)
    state = types.TrainState(zero, zero, {}, (), (), None, {}, zero, zero)
    extras = {"config": json.loads(files.dumps(config)), "tokenizer": base64.b64encode(tokenizer).decode()}
    with checkpoints.Checkpointer(folder / "run" / "checkpoints") as saver:
        saver.save(1, state, extras)
    return str(folder / "run")


OTHERS = {  # every field of calls, of the run and of phases, and a text inside a call
    **{field: "{path}(1)" for field in ("task", "algorithm", "phase.main.task", "phase.main.algorithm")},
    **{
        f"{group}seam.{seam}": "+ {path}(1)" for group in ("", "phase.main.") for seam in ("penalty", "reward", "after")
    },
    "phase.warm.optimizer": "sgd(1.0) | {path}(1)",
    "phase.main.optimizer": "sgd({path}(1))",
    "phase.warm.algorithm": "ppo(critic_optimizer='{path}()')",
}


@pytest.mark.default_tier(10)
@pytest.mark.parametrize("field", OTHERS)
@pytest.mark.parametrize("path", [f"{STUDY_NAME}.task", "sneaky_package.module.f"])
def test_the_config_of_a_run_executes_nothing(field, path, trace, tmp_path):
    """It names code that can be imported: a marked function, and that of somebody else."""
    run = foreign(tmp_path, **{field: OTHERS[field].format(path=path)})
    for read in (loading.load, lambda run: convert._read(run, None, "", ["study"])):
        with pytest.raises(ValueError, match=rf"config of the run names '{path}'.*--allow_code={path.split('.')[0]},"):
            read(run)
        assert path.partition(".")[0] not in sys.modules and not trace.exists()
    with pytest.raises(
        KeyError, match="step"
    ):  # the field is not read, so that the checkpoint's step is what is absent
        rljax.load(run, task="arithmetic()")
    assert path.partition(".")[0] not in sys.modules and not trace.exists()


def test_code_is_allowed_by_package(trace, tmp_path):
    run = foreign(tmp_path, algorithm="sneaky_package.module.f()")
    for allowed in ([STUDY_NAME], ["sneaky", "sneaky_package.mod", "module"]):
        with pytest.raises(ValueError, match=r"the config of the run names"):
            loading.load(run, allow_code=allowed)
        assert not trace.exists()
    run = foreign(tmp_path / "other", algorithm=f"{STUDY_NAME}.recipe()")
    with pytest.raises(ValueError, match=r"config\.algorithm: .*recipe\(\): "):
        loading.load(run, allow_code=[STUDY_NAME])  # it was called, and returns no algorithm
    assert trace.exists()


def test_a_run_may_not_name_a_reward_function_but_who_reads_it_may(trace, tmp_path, monkeypatch):
    (tmp_path / "rewards_of_others.py").write_text("def right(completion, reference):\n    return 1.0\n")
    (tmp_path / "rows.jsonl").write_text('{"question": "a"}\n{"question": "b"}\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    task = "jsonl('rows.jsonl', answer='', reward='rewards_of_others:right')"
    with pytest.raises(ValueError, match=r"the config of the run names 'rewards_of_others.right'.*--allow_code"):
        loading.load(foreign(tmp_path / "one", task=task))
    assert "rewards_of_others" not in sys.modules
    with pytest.raises(ValueError, match=r"heldout=0\.1: holds out"):  # the reward has been resolved
        loading.load(foreign(tmp_path / "two"), task=task)
    assert "rewards_of_others" in sys.modules


@pytest.mark.full
def test_a_run_of_a_study_is_read_with_its_package_allowed(tmp_path):
    config = tiny.config("experiments.example_pieces.pieces.tapered_rloo()", phase__main__steps=1)
    result = loop.train(config, tmp_path / "run", progress=False, devices=jax.devices()[:1])
    with pytest.raises(ValueError, match=r"pass --allow_code=experiments, in Python allow_code=\['experiments'\]"):
        rljax.load(tmp_path / "run")
    for package in ("experiments", "experiments.example_pieces"):
        program, params, step = rljax.load(tmp_path / "run", allow_code=[package])
        assert step == 1 and program.phases[0].algorithm.spec == "tapered_rloo(power=1.0)"
        jax.tree.map(np.testing.assert_array_equal, jax.device_get(params), jax.device_get(result.params))
    with pytest.raises(ValueError, match="the config of the run names"):
        rljax.load(tmp_path / "run", allow_code=["experiment", "experiments.example"])


def test_the_tokenizer_of_a_run_executes_nothing(trace, tmp_path):
    for number, content in enumerate((PICKLE.format(trace=trace).encode(), pickle.dumps({}), b"\x80\x04")):
        with pytest.raises(ValueError):
            loading.load(foreign(tmp_path / str(number), tokenizer=content))
        assert not trace.exists()


@pytest.mark.parametrize("config", [None, [], "grpo()", {"phase": 3}, {"task": 3}, {"nothing": 1}, {"seam": {"x": 1}}])
def test_a_config_that_is_none_is_one_line(config, tmp_path):
    zero = jnp.zeros(1)
    state = types.TrainState(zero, zero, {}, (), (), None, {}, zero, zero)
    with checkpoints.Checkpointer(tmp_path / "checkpoints") as saver:
        saver.save(1, state, {"config": config, "tokenizer": ""})
    with pytest.raises(ValueError) as caught:
        loading.load(str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.full
def test_every_command_on_a_run_reports_its_code_in_one_line(trace, tmp_path):
    run = foreign(tmp_path, task=f"{STUDY_NAME}.task()")
    lines = (
        ["sample", run, "--prompt", "1"],
        ["evaluate", run],
        ["convert", run],
    )
    done = commands(tmp_path, *lines)
    assert [code for code, _ in done] == [2, 2, 2] and not trace.exists()
    assert all(
        t.startswith(f"error: config.task: the config of the run names '{STUDY_NAME}.task'") and t.count("\n") == 1
        for _, t in done
    )
