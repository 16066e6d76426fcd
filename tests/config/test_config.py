"""The config language, what resolving checks, and the errors it gives: nothing here compiles."""

import dataclasses

import jax
import pytest

from rljax import algorithms, transforms, types
from rljax.algorithms import seams
from rljax.config import compatible, resolve, schema
from rljax.run import programs
from tests.config.config_cases import edited, loss_of, main, resolved
from tests.support import batch, tiny

# --- bad input ------------------------------------------------------------------------


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
    (
        {"seam__penalty": "kll()"},
        r"config\.seam\.penalty: .*Did you mean 'kl'\? Valid: chain, conservative, convex_kl, .*, where\.",
    ),
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
    ({"algorithm": "rljax.algorithms.recipes.clipped.grop()"}, "has no function 'grop'. Did you mean 'grpo'"),
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
    ({"verifier__concurrency": 0}, r"config\.verifier\.concurrency=0: must be a whole number in \[1"),
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
    ({"phase__main__sampler__stop": ("",)}, r"sampler\.stop=\('',\) \(phase 'main'\): no text may be empty"),
    ({"phases": ("warm", "main", "warm")}, r"config\.phases=\('warm', 'main', 'warm'\): names 'warm' twice"),
    ({"model__heads": 3}, r"config\.model: width=32 must be divisible by heads=3"),
    ({"model__dtype": "float8"}, r"config\.model\.dtype='float8': must be one of 'float32', 'bfloat16'"),
    # seams
    ({"seam__source": "none"}, r"config\.seam\.source='none': at least one piece"),
    ({"seam__reduce": "+ sum_over_tokens()"}, r"exactly one piece, got 2"),
    ({"seam__penalty": "rljax.methods.weight.by_sign()"}, r"by_sign\(.*\) belongs to seam 'weight'"),
    ({"seam__penalty": "rljax.language.parse.nearest('a', ())"}, "is not a piece"),
    (
        {"seam__penalty": "rljax.algorithms.recipes.clipped.grpo()"},
        r"'rljax\.algorithms\.recipes\.clipped\.grpo' is not a piece: define it",
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
    phase = dataclasses.replace(resolve.phases(tiny.config())[0], algorithm=algorithm)
    config = tiny.config(learner__microbatches=16)  # 8 prompts * 4 samples
    with pytest.raises(
        ValueError, match=r"= 16 \(phase 'main'\): must divide 8 prompts \* 4 .*without splitting a group"
    ):
        compatible._check_split(dataclasses.replace(phase, settings=resolve.check(config)))
    config.learner.microbatches = 8
    compatible._check_split(dataclasses.replace(phase, settings=resolve.check(config)))


def test_rows_that_do_not_divide_over_the_mesh_are_refused():
    config = tiny.config(batch__prompts=3, batch__samples=2)
    with pytest.raises(ValueError, match=r"config\.batch\.prompts \* samples \(phase 'main'\)=6: .*divisible by 8"):
        programs.build(config, devices=jax.devices())
    config.mesh.update({"data": 3})
    with pytest.raises(ValueError, match=r"mesh data=3.* does not fit 8 devices"):
        programs.build(config, devices=jax.devices())


# --- calls ----------------------------------------------------------------------------


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
