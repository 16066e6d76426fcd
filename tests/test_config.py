"""The config language, what resolving checks, and the errors it gives: nothing here compiles."""

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
from tests import batch, tiny

CONFIGS = sorted(p.stem for p in (pathlib.Path(__file__).parent.parent / "configs").glob("*.py") if p.stem[0] != "_")


def resolved(**fields):
    return resolve.phases(tiny.phases(**fields))


def main(**fields):
    """Return the algorithm of the main phase."""
    return resolved(**fields)[-1].algorithm


def loss_of(**fields):
    return [p.spec for p in main(**fields).objectives[0].loss]


# --- bad input ----------------------------------------------------------------------------------

PAIR = r"overlong must be a tuple of 2, each a whole number in \[1, 1e9\] or None"
BAD = [
    # unknown names: the field, and the nearest valid one
    ({"algorithm": "grop()"}, r"config\.algorithm: unknown name 'grop'\. Did you mean 'grpo'\? Valid: a_3po, a_lol"),
    ({"algorithm": "center_by_group()"}, "unknown name 'center_by_group'"),
    ({"phase__main__algorithm": "rlo()"}, r"config\.phase\.main\.algorithm: .*Did you mean 'rloo'"),
    (
        {"task": "arithmetics()"},
        r"config\.task: .*Did you mean 'arithmetic'\? Valid: .*arithmetic, .*countdown, .*gsm8k",
    ),
    ({"seam__penalty": "kll()"}, r"config\.seam\.penalty: .*Did you mean 'kl'\? Valid: chain, convex_kl, .*, where\."),
    ({"seam__surrogate": "kl()"}, r"config\.seam\.surrogate: unknown name 'kl'"),
    ({"phase__main__optimizer": "adam(lr=1e-3)"}, r"Here it is 'learning_rate'"),
    ({"temperature": 1.0}, r"config\.temperature: unknown field\. Did you mean config\.sampler\.temperature\?"),
    ({"batch__prompts": 10**9}, r"config\.batch\.prompts=1000000000, .* a step has [0-9,]+ rows, of at most"),
    ({"module__value": None}, r"config\.module\.value=None: must be a module"),
    ({"phase__main": None}, r"config\.phase\.main=None: must be a phase"),
    ({"steps": 9}, r"config\.steps: unknown field\. Did you mean config\.phase\..*\.steps"),
    ({"lr": 1.0}, r"config\.lr: unknown field\. Here that is learning_rate, in the call of config\.phase"),
    ({"max_grad_norm": 1.0}, r"Did you mean config\.learner\.clip_norm\?"),
    ({"phase__main__optimizer": "adamm(1e-3)"}, r"config\.phase\.main\.optimizer: .*Did you mean 'adamw?'"),
    ({"phases": ("warm", "mian")}, r"config\.phases: no config\.phase\.mian\. Did you mean 'main'\? Valid: main, warm"),
    ({"algorithm": "rljax.nowhere.mine()"}, "'rljax.nowhere.mine' cannot be imported"),
    ({"algorithm": "rljax.algorithms.clipped.grop()"}, "has no function 'grop'. Did you mean 'grpo'"),
    # arguments: unknown, of the wrong type, out of range, missing, twice
    (
        {"algorithm": "grpo(hihg=0.3)"},
        r"grpo\(\) has no argument 'hihg'\. Did you mean 'high'\? Valid: aggregate, charge",
    ),
    ({"task": "arithmetic(digit=2)"}, r"config\.task: arithmetic\(\) has no argument 'digit'\. Did you mean 'digits'"),
    ({"algorithm": "grpo(high='a')"}, r"grpo\(high='a'\): high must be a number in \[0, inf\)"),
    ({"algorithm": "grpo(high=True)"}, r"high must be a number"),
    ({"algorithm": "grpo(high=-0.1)"}, r"high must be a number in \[0, inf\)"),
    ({"algorithm": "grpo(kl=nan)"}, r"kl must be a number in \[0, inf\)"),
    ({"algorithm": "reinforce(gamma=1.5)"}, r"gamma must be a number in \[0, 1\]"),
    ({"seam__surrogate": "clip(dual=0)"}, r"dual must be a number in \(0, inf\) or None"),
    ({"algorithm": "grpo(ddof=1.5)"}, "ddof must be a whole number"),
    ({"algorithm": "dr_grpo(length=0)"}, r"length must be a whole number in \[1, 1e9\] or None"),
    ({"algorithm": "dr_grpo(length=linear(1, 5, 10))"}, r"length must be a whole number in \[1, 1e9\] or None"),
    ({"algorithm": "dapo(overlong=5)"}, r"overlong must be a tuple of 2, each a whole number in \[1, 1e9\] or None"),
    (
        {"algorithm": "dapo(overlong=(8, 2, 1))"},
        r"overlong must be a tuple of 2, each a whole number in \[1, 1e9\] or None",
    ),
    (
        {"algorithm": "dapo(overlong=(8, 'a'))"},
        r"overlong must be a tuple of 2, each a whole number in \[1, 1e9\] or None",
    ),
    ({"seam__penalty": "kl('k9')"}, r"estimator must be one of 'k1', 'k2', 'k3', 'abs', 'k1\+'"),
    ({"seam__penalty": "kl(reduce=3)"}, "reduce must be a PrepareTransform or None"),
    (
        {"seam__penalty": "kl(coefficient=linear(0.1, 0.0, 0))"},
        r"linear\(steps=0\): steps must be a whole number in \[1",
    ),
    (
        {"seam__source": "dynamic(oversample=linear(1, 2, 5))"},
        r"dynamic\(oversample=linear\(start=1.*must be a whole",
    ),
    (
        {"seam__reward": "overlong(8)"},
        r"overlong\(limit, cache, factor, beyond\): missing a required argument: 'cache'",
    ),
    ({"algorithm": "grpo(0.1, low=0.2)"}, r"grpo\(low, high, .*multiple values for argument 'low'"),
    ({"phase__main__optimizer": "adam()"}, "missing a required argument: 'learning_rate'"),
    ({"phase__main__optimizer": "linear_schedule(1, 0, 5)"}, "must be a chain of optax gradient transformations"),
    ({"phase__main__optimizer": "none"}, "must be a chain of optax gradient transformations"),
    ({"task": "arithmetic(digits=0)"}, r"config\.task: arithmetic\(\): digits"),
    # numbers and choices that are fields of their own
    ({"batch__samples": 1}, r"config\.batch\.samples=1 \(phase 'main'\): grpo\(.*\) has a group baseline"),
    ({"phase__main__batch__samples": 1}, r"samples=1 \(phase 'main'\): .* needs at least 2 samples"),
    ({"batch__prompts": 0}, r"config\.batch\.prompts=0: must be a whole number in \[1"),
    ({"phase__main__steps": 0}, r"config\.phase\.main\.steps=0: must be a whole number in \[1"),
    ({"phase__main__warmup": -1}, r"config\.phase\.main\.warmup=-1: must be a whole number in \[0"),
    ({"phase__main__reference": "old"}, r"config\.phase\.main\.reference='old': must be one of 'start', 'keep'"),
    ({"phases": ()}, r"config\.phases=\(\): must name at least one phase"),
    ({"learner__minibatches": 3}, r"minibatches \* config\.learner\.microbatches = 3 .*must divide 16 prompts \* 1"),
    ({"learner__minibatches": 4, "learner__microbatches": 8}, r"= 32 \(phase 'warm'\): must divide 16 prompts"),
    ({"learner__epochs": 0}, r"config\.learner\.epochs=0: must be a whole number in \[1"),
    ({"learner__clip_norm": -1.0}, r"config\.learner\.clip_norm=-1\.0: must be a number in \[0"),
    ({"verifier__workers": -1}, r"config\.verifier\.workers=-1: must be a whole number in \[0"),
    ({"verifier__chunks": 0}, r"config\.verifier\.chunks=0: must be a whole number in \[1"),
    ({"verifier__timeout": 0.0}, r"config\.verifier\.timeout=0\.0: must be a number in \(0"),
    ({"log__every": 0}, r"config\.log\.every=0: must be a whole number in \[1"),
    ({"checkpoint__max_to_keep": 0}, r"config\.checkpoint\.max_to_keep=0: must be a whole number in \[1"),
    ({"evaluation__samples": 0}, r"config\.evaluation\.samples=0: must be a whole number in \[1"),
    ({"sampler__temperature": 0.0}, r"config\.sampler\.temperature=0\.0 \(phase 'main'\): must be above 0 in training"),
    (
        {"sampler__rescore": "filtered"},
        r"config\.sampler\.rescore='filtered': must be one of 'unfiltered', 'kept'. Did you mean 'unfiltered'",
    ),
    ({"sampler__top_p": 0.0}, r"top_p.*\(0, 1\]"),
    ({"model__heads": 3}, r"config\.model: width=32 must be divisible by heads=3"),
    ({"model__dtype": "float8"}, r"config\.model\.dtype='float8': must be one of 'float32', 'bfloat16'"),
    # seams
    ({"seam__source": "none"}, r"config\.seam\.source='none': at least one piece"),
    ({"seam__reduce": "+ sum_over_tokens()"}, r"exactly one piece, got 2"),
    ({"seam__penalty": "rljax.transforms.weight.by_sign()"}, r"by_sign\(.*\) belongs to seam 'weight'"),
    ({"seam__penalty": "rljax.language.parse.nearest('a', ())"}, "is not a piece"),
    (
        {"seam__penalty": "rljax.algorithms.clipped.grpo()"},
        r"'rljax\.algorithms\.clipped\.grpo' is not a piece: define it",
    ),
    ({"seam__penalty": "chain()"}, r"config\.seam\.penalty: chain\(\): .*at least one piece"),
    (
        {"seam__penalty": "where('right', kl(), entropy())"},
        "predicate must be one of 'on_policy', 'off_policy', 'correct'",
    ),
    ({"seam__penalty": "where('correct', 1, kl())"}, "then must be a LossTransform"),
    ({"seam__penalty": "+"}, r"config\.seam\.penalty=.*not a call"),
    ({"seam__penalty": "kl() + entropy()"}, "is not a call to a name"),
]


@pytest.mark.parametrize(
    ("fields", "message"), BAD, ids=lambda x: " ".join(map(str, x.values())) if x != str(x) else ""
)
def test_bad_input_names_the_field_and_what_is_valid(fields, message):
    with pytest.raises(ValueError, match=message):
        resolved(**fields)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('echo')",
        "(lambda: 0)()",
        "[x for x in ()]",
        "'a'.upper()",
        "().__class__()",
        "grpo()()",
        "grpo(high=__import__('os'))",
        "grpo(high=(lambda: 0.2)())",
        "grpo(high=[0.2 for _ in 'a'])",
        "grpo(high=1 + 1)",
        "grpo(high=low)",
        "grpo(**{'high': 0.1})",
        "grpo(*(0.1, 0.2))",
        "(grpo := dapo)()",
        "f'{grpo()}'",
        "os.getcwd()",
        "builtins.eval('1')",
        "grpo(high=os.getcwd())",
        "grpo(",
        "grpo();",
        "1",
        "'grpo()'",
        "",
    ],
)
def test_text_that_is_not_a_call_of_known_names_is_refused(text):
    with pytest.raises(ValueError, match=r"config\.algorithm"):
        resolved(algorithm=text)


def test_a_refused_call_was_not_made(tmp_path):
    for text in (f"os.mkdir({str(tmp_path / 'made')!r})", f"__import__('os').mkdir({str(tmp_path / 'made')!r})"):
        with pytest.raises(ValueError, match=r"config\.algorithm"):
            resolved(algorithm=text)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    ("path", "field", "hint"),
    [((), "algoritm", "algorithm"), (("model",), "layer", "layers"), (("phase", "main"), "step", "steps")],
)
def test_an_unknown_field_anywhere_is_refused(path, field, hint):
    config = tiny.config()
    target = config
    for name in path:
        target = target[name]
    with target.unlocked():
        target[field] = 1
    with pytest.raises(ValueError, match=rf"config\.{'.'.join((*path, field))}: unknown field\. Did you mean '{hint}'"):
        resolve.phases(config)
    with pytest.raises(ValueError, match=r"phase\.step: unknown field\. Did you mean 'steps'"):
        schema.phase(step=1)


@pytest.mark.parametrize("value", ["a", 2.5, True])
def test_a_field_of_the_wrong_type_is_refused(value):
    config = tiny.config()
    config.phase.main = schema.ConfigDict({**config.phase.main.to_dict(), "steps": value})
    with pytest.raises(ValueError, match=rf"config\.phase\.main\.steps={value!r}: must be a whole number"):
        resolve.phases(config)


def test_pieces_that_need_a_whole_group_are_not_split():
    prepare = types.PrepareTransform(lambda rollout, scores, state, key: (rollout, state))
    loss = types.LossTransform(lambda loss, rollout, scores, state, key: loss, needs=types.Needs(whole="group"))
    algorithm = types.Algorithm((types.Objective(loss=(loss,), reduce=prepare),))
    config = tiny.config(learner__microbatches=16)  # 8 prompts * 4 samples
    with pytest.raises(
        ValueError, match=r"= 16 \(phase 'main'\): must divide 8 prompts \* 4 .*without splitting a group"
    ):
        resolve._check_split(resolve.check(config), algorithm, resolve.phases(tiny.config())[0].task, "main")
    config.learner.microbatches = 8
    resolve._check_split(resolve.check(config), algorithm, resolve.phases(tiny.config())[0].task, "main")


def test_rows_that_do_not_divide_over_the_mesh_are_refused():
    config = tiny.config(batch__prompts=3, batch__samples=2)
    with pytest.raises(ValueError, match=r"config\.batch\.prompts \* samples \(phase 'main'\)=6: .*divisible by 8"):
        programs.build(config, devices=jax.devices())
    config.mesh.update({"data": 3})
    with pytest.raises(ValueError, match=r"mesh data=3.* does not fit 8 devices"):
        programs.build(config, devices=jax.devices())


# --- calls --------------------------------------------------------------------------------------


def test_calls_fill_in_defaults_and_nest():
    assert main(algorithm="grpo").spec == main(algorithm="grpo()").spec == algorithms.grpo().spec
    nested = main(algorithm="grpo(kl=linear(0.1, 0.0, steps=10))")
    assert "kl=linear(start=0.1, end=0.0, steps=10)" in nested.spec
    assert (
        main(algorithm="dapo(overlong=(8, 2))").transforms[0].spec
        == "overlong(limit=8, cache=2, factor=1.0, beyond='hold')"
    )


def test_a_dotted_path_reaches_any_module_that_imports_rljax(tmp_path, monkeypatch):
    (tmp_path / "study_of_mine.py").write_text(
        "from rljax import algorithms, types\n"
        "from rljax.transforms import define, penalty, reduce, surrogate\n"
        "@algorithms.recipe\n"
        "def mine(scale: types.Positive = 0.5):\n"
        "    return algorithms.compose(loss=[surrogate.likelihood()], reduce=reduce.mean_over_rows())\n"
        "@algorithms.recipe\n"
        "def wrong():\n"
        "    return 3\n"
        "def plain():\n"
        "    return algorithms.grpo()\n"
        "@define.constructor('penalty')\n"
        "def length(coefficient: types.NonNegative = 1.0):\n"
        "    return penalty.entropy(coefficient)\n"
        "@define.constructor('surrogate')\n"
        "def homeless():\n"
        "    return penalty.entropy()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert [p.spec for p in main(algorithm="study_of_mine.mine(scale=2)").objectives[0].loss] == ["likelihood()"]
    with pytest.raises(ValueError, match=r"mine\(scale=0\): scale must be a number in \(0, inf\)"):
        main(algorithm="study_of_mine.mine(scale=0)")
    with pytest.raises(
        ValueError, match=r"no function 'mime'. Did you mean 'mine'.* Valid: homeless, length, mine, wrong"
    ):
        main(algorithm="study_of_mine.mime()")
    with pytest.raises(ValueError, match=r"config\.algorithm: study_of_mine\.wrong\(\): "):
        main(algorithm="study_of_mine.wrong()")
    with pytest.raises(ValueError, match=r"'study_of_mine\.plain' is not a recipe: define it under @rljax\.algorithms"):
        main(algorithm="study_of_mine.plain()")
    assert loss_of(seam__penalty="study_of_mine.length(2.0)")[-1] == "length(coefficient=2.0)"
    with pytest.raises(ValueError, match=r"homeless\(\) belongs to seam 'surrogate'"):
        main(seam__penalty="study_of_mine.homeless()")


def edited(seam, text):
    (piece,) = seams.pieces(seam, text, "test")
    return piece


@pytest.mark.parametrize("name", algorithms.TABLE)
def test_what_is_printed_of_a_recipe_builds_it_again(name):
    built = algorithms.example(name)
    again = seams.algorithm(built.spec, "test")
    assert again.spec == built.spec
    assert algorithms.describe(again) == algorithms.describe(built)
    for piece in (*built.transforms, *(p for o in built.objectives for p in (*o.prepare, *o.loss, o.reduce))):
        assert edited(piece.seam, piece.spec).spec == piece.spec


@pytest.mark.parametrize("seam", transforms.SEAMS)
def test_what_is_printed_of_a_piece_builds_it_again(seam):
    for name in transforms.pieces(seam):
        built = edited(seam, f"{name}({batch.ARGUMENTS.get(name, '')})")
        again = edited(seam, built.spec)
        assert again.spec == built.spec and built.spec.startswith(f"{name}(")


def test_describe_shows_every_default():
    assert algorithms.describe(main(algorithm="ppo(critic_epochs=2)", seam__after="ema_reference()")).splitlines() == [
        "ppo(low=0.2, high=0.2, gamma=1.0, lam=0.95, kl=0.05, value_clip=0.2, dual=None, estimator='k1', "
        "critic_epochs=2, critic_optimizer=None, value_range=None)",
        "  source     task()",
        "  reward     kl(estimator='k1', coefficient=0.05)",
        "  advantage  gae(gamma=1.0, lam=0.95, value_lam=None)",
        "  advantage  whiten(epsilon=1e-08, key='batch')",
        "  objective on the policy module",
        "    ratio     token(anchor='proximal', limit=None)",
        "    surrogate clip(low=0.2, high=0.2, dual=None)",
        "    reduce    mean_over_tokens(only=None)",
        "  objective on the value module epochs=2",
        "    surrogate value_error(clip=0.2, expectile=0.5)",
        "    reduce    mean_over_tokens(only=None)",
        "  after      ema_reference(decay=0.99)",
    ]


# --- seams --------------------------------------------------------------------------------------

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


# --- phases, edits, files -----------------------------------------------------------------------


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
    with pytest.raises(ValueError, match="only variant is 'quick'"):
        files.load("quickstart", "slow")
    path = tmp_path / "own.py"
    path.write_text("from rljax import config\n\ndef get_config(arg=''):\n    return config.default()\n")
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
