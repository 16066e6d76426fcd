"""Errors of pieces and tasks name the code, before anything compiles; the battery fails for exactly what is wrong."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import __main__, algorithms, types
from rljax.algorithms import battery
from rljax.algorithms.battery import checks, command, programs
from rljax.language import errors
from rljax.training import checks as phase_checks
from rljax.transforms import define, surrogate
from tests.support import batch, tiny

HERE = "tests.algorithms.test_check"


@define.surrogate
def of_another_shape(loss, r, s, power: types.NonNegative = 1.0):
    """Multiply [B, T] by [B]."""
    return -r.advantage * s.logp * jnp.sum(r.mask, axis=1) ** power


@define.surrogate
def scalar(loss, r, s):
    """Reduce the term itself."""
    return jnp.mean(-r.advantage * s.logp)


@define.surrogate
def nothing(loss, r, s):
    """Return nothing."""


@define.surrogate
def half(loss, r, s):
    """Return bfloat16."""
    return (-r.advantage * s.logp).astype(jnp.bfloat16)


@define.surrogate
def undeclared(loss, r, s):
    """Read what is not declared."""
    return -r.advantage * s.logp * s.entropy


@define.surrogate
def without_reference(loss, r, s):
    """Read a field of the rollout that is not declared."""
    return -r.advantage * (s.logp - r.ref_logp)


@define.surrogate
def of_python(loss, r, s):
    """Raise a ValueError that is no message to a user."""
    return s.logp * int("three")


@define.prepare
def scores_before_the_loss(r, s):
    """Read scores of the whole minibatch, undeclared."""
    return s.logp > -1.0


@define.prepare
def misspelt(r, s):
    """Write the coefficient of no term."""
    return r.replace(coefficient={"polcy": r.mask})


@define.constructor("advantage")
def another_state():
    """Change the structure of the state."""
    return types.RolloutTransform(lambda r, state, key: (r, (state,)), init=lambda: jnp.zeros(()))


@define.constructor("penalty")
def absent_metric():
    """Read a metric that no piece writes."""
    return types.LossTransform(lambda loss, *_: loss, observe=lambda state, metrics: metrics["loss/polcy"])


@define.surrogate(needs=define.reads("format"))
def of_format(loss, r, s):
    """Read a part, and reduce the term."""
    return jnp.mean(r.parts["format"])


@define.penalty
def of_a_misspelt_term(loss, r, s):
    """Read a term that no piece writes."""
    return loss.terms["polcy"]


@define.penalty
def a_dict(loss, r, s):
    """Return a dict in place of the term."""
    return {"polcy": r.mask}


@define.surrogate
def unmasked(loss, r, s):
    """Read masked tokens."""
    return -r.advantage * jnp.exp(loss.log_ratio) - 0.1 * jnp.mean(s.logp, axis=1, keepdims=True) * r.mask


@define.advantage
def of_the_row_before(r):
    """Depend on the order of rows."""
    return r.reward - jnp.roll(r.reward, 1)


@define.surrogate
def of_the_batch(loss, r, s):
    """Read a mean of the micro-batch."""
    counted = r.mask * r.valid[:, None]
    mean = jnp.sum(r.advantage * counted) / jnp.maximum(jnp.sum(counted), 1.0)
    return -(r.advantage - mean) * jnp.exp(loss.log_ratio)


@define.surrogate
def of_the_width(loss, r, s):
    """Divide by the padded length."""
    return -r.advantage * jnp.exp(loss.log_ratio) / r.mask.shape[1]


@define.surrogate
def unbounded(loss, r, s):
    """Overflow at large ratios."""
    return -r.advantage * jnp.exp(loss.log_ratio * 20.0)


@jax.custom_jvp
def identity(x):
    """Return x, with a derivative of 2."""
    return x


identity.defjvp(lambda primals, tangents: (primals[0], 2.0 * tangents[0]))


@define.surrogate
def wrongly_differentiated(loss, r, s):
    """Have another derivative than its value."""
    return -r.advantage * jnp.exp(identity(loss.log_ratio))


# --- errors ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seam", "name", "message", "note"),
    [
        (
            "surrogate",
            "of_another_shape",
            r"surrogate of_another_shape(power=1.0): ValueError: ",
            "** power",
        ),
        ("surrogate", "scalar", "returned a result that has shape (): expected (12, 6), [B, T]", "the term [B, T]"),
        ("surrogate", "nothing", "returned a result that is None: expected an array (12, 6)", "the term [B, T]"),
        ("surrogate", "half", "returned a result that has type bfloat16: expected float32", "float32[12, 6]"),
        ("surrogate", "undeclared", "Write needs=types.Needs(entropy=True)", "s.logp * s.entropy"),
        ("surrogate", "without_reference", "TypeError: unsupported operand", "needs=types.Needs(reference=True)"),
        ("surrogate", "of_python", "ValueError: invalid literal for int()", 'int("three")'),
        ("prepare", "scores_before_the_loss", "Write needs=types.Needs(live=True)", "return s.logp"),
        ("penalty", "of_a_misspelt_term", "KeyError: 'polcy'", "Did you mean loss.terms['policy']?"),
        ("penalty", "a_dict", "that is {'polcy': 'float32[12, 6]'}: expected an array", ""),
        ("prepare", "misspelt", "coefficient['polcy'] belongs to no term of the loss", ""),
        ("advantage", "another_state", "advantage another_state(): the state was", "rollout.reward"),
    ],
)
def test_an_error_of_a_piece_names_it_with_its_file_and_its_arrays(seam, name, message, note):
    rollout, scores = batch.records(batch.arrays())
    rollout = rollout.replace(ref_logp=None) if name == "without_reference" else rollout

    def objective(rollout, scores):
        return rljax.objective("rloo()", rollout, scores, seam={seam: f"{HERE}.{name}()"})

    with pytest.raises(errors.CodeError) as raised:
        jax.eval_shape(objective, rollout, scores)
    notes = "\n".join(raised.value.notes)
    assert message in str(raised.value) and note in notes, (raised.value, notes)
    assert "site-packages" not in notes
    if seam == "surrogate":
        assert "/test_check.py" in f"{raised.value}{notes}"


def test_the_check_of_a_source_names_the_command_that_checks_it():
    with pytest.raises(errors.Absent, match=r'--config.seam.source="mopps\(\)" --check'):
        command.build("mopps()")


def test_an_error_of_a_piece_lists_the_arrays_that_its_needs_name():
    lists = [str(rljax.check(call)[0].advice) for call in (f"{HERE}.scalar()", f"{HERE}.of_format()")]
    for text in lists:
        assert "rollout.mask" in text and "rollout.reward" in text and "that its needs do not name" in text
        assert "rollout.episode" not in text and "scores.entropy" not in text and "parts['answer']" not in text
    assert ["parts['format']" in text for text in lists] == [False, True]


def test_pieces_of_every_phase_are_checked_when_the_program_is_built():
    piece = f"{HERE}.absent_metric()"
    with pytest.raises(errors.CodeError, match=r"phase 'main', .*: penalty absent_metric\(\): KeyError") as raised:
        rljax.make_program(tiny.config(phase__main__seam__penalty=piece))
    assert "Did you mean metrics['loss/policy']?" in raised.value.notes


class OfOneRow:
    """A task whose verifier returns one number for the batch."""

    def __init__(self, task):
        """Take everything else from a task."""
        self.task = task

    def __getattr__(self, name):
        """Return what the task has."""
        return getattr(self.task, name)

    def verify(self, index, split, token, mask):
        """Return a verdict of one row."""
        return jax.tree.map(jnp.mean, self.task.verify(index, split, token, mask))


def test_the_verdict_of_a_task_has_a_number_for_each_row():
    setup = tiny.program().setups[0]
    with pytest.raises(errors.CodeError, match=r"task '.*': verify: Verdict.reward has shape \(\): expected \(32,\)"):
        phase_checks.check(dataclasses.replace(setup, task=OfOneRow(setup.task)))


def raised_by(function, *arguments):
    with pytest.raises(ValueError) as raised:
        function(*arguments)
    return raised.value


def test_only_what_rljax_raises_is_a_message_to_the_user():
    assert errors.is_message(raised_by(algorithms.seams.algorithm, "grpoo()", "config.algorithm"))
    assert not errors.is_message(raised_by(int, "three"))
    assert not errors.is_message(raised_by(lambda: jnp.ones((2, 3)) + jnp.ones(2)))
    assert not errors.is_message(raised_by(np.reshape, np.ones(3), (2, 2)))


def test_an_error_inside_a_recipe_has_its_line(tmp_path, monkeypatch):
    (tmp_path / "study_of_errors.py").write_text(
        "from rljax import algorithms\n\n\n@algorithms.recipe\ndef mine():\n    return algorithms.compse()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    error = raised_by(algorithms.seams.algorithm, "study_of_errors.mine()", "config.algorithm")
    assert "config.algorithm: study_of_errors.mine(): AttributeError" in str(error)
    assert "line 6, in mine" in error.notes[0] and "algorithms.compse()" in error.notes[0]


def test_what_a_library_raises_inside_a_recipe_has_the_line_of_the_recipe(tmp_path, monkeypatch):
    (tmp_path / "study_of_libraries.py").write_text(
        "import numpy as np\nfrom rljax import algorithms\n\n\n@algorithms.recipe\ndef mine(power=1):\n"
        "    if power > 1:\n        raise ValueError('power must be 1')\n"
        "    return np.stack([np.ones(2), np.ones(3)])\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    error = raised_by(algorithms.seams.algorithm, "study_of_libraries.mine()", "config.algorithm")
    assert isinstance(error, errors.CodeError) and "line 9, in mine" in error.notes[0]
    error = raised_by(algorithms.seams.algorithm, "study_of_libraries.mine(power=2)", "config.algorithm")
    assert type(error) is ValueError and "power must be 1" in str(error)


# --- the battery -------------------------------------------------------------------------------------


@pytest.mark.full
def test_the_battery_knows_widths_that_divide_pairs_and_draws():
    for call in ("dr_grpo()", "surrogate.preference()"):
        assert checks.padding(programs.Program(command.build(call)), random=False).passed, call
    assert failed("random_pair()") == []


def test_a_straight_through_bound_is_exact_where_the_ratio_is_huge():
    rollout, scores = batch.records(batch.arrays())
    rows = jnp.zeros_like(rollout.reward)
    rollout = rollout.replace(extra={"solve_rate": rows + 0.9}, reward=rows, outcome=rows.astype(jnp.int32))
    loss = types.Loss(log_ratio=jnp.full_like(rollout.mask, 20.0))
    term = surrogate.implicit_negative().apply(loss, rollout, scores, (), jax.random.key(0)).terms["policy"]
    np.testing.assert_array_equal(term, jnp.zeros_like(rollout.mask))  # -log(1)


def failed(call):
    return [f.check for f in rljax.check(call) if f.passed is False]


def program(name):
    return programs.Program(command.build(f"{HERE}.{name}()"))


@pytest.mark.full
@pytest.mark.parametrize(
    "call",
    [
        *("ppo()", "ppo(value_range=(0.0, 1.0))", "dpo()"),
        "experiments.example_pieces.pieces.tapered(linear(0.0, 1.0, 9))",
    ],
)
def test_the_battery_passes_for_shipped_losses(call):
    assert failed(call) == []


@pytest.mark.parametrize("name", ["scalar", "half", "of_python"])
def test_a_wrong_shape_or_type_fails_the_battery(name):
    assert failed(f"{HERE}.{name}()") == ["shapes and dtypes"]


WRONG = {
    "unmasked": checks.masked,
    "of_the_row_before": lambda program: checks.row_order(program, random=False),
    "of_the_width": lambda program: checks.padding(program, random=False),
    "of_the_batch": checks.micro_batches,
    "unbounded": checks.extremes,
    "wrongly_differentiated": checks.finite_differences,
}


@pytest.mark.full
@pytest.mark.parametrize("name", WRONG)
def test_each_check_fails_for_a_piece_that_is_wrong_in_its_way(name):
    finding = WRONG[name](program(name))
    assert finding.passed is False and finding.advice


def test_the_command_prints_a_line_for_each_check_and_its_exit_code_says_whether_one_failed(capsys):
    with pytest.raises(SystemExit) as stopped:
        __main__.run("check", [f"{HERE}.scalar()"])
    assert stopped.value.code == 1 and "FAIL  shapes and dtypes" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stopped:
        __main__.run("check", ["kl(coefficient=0.1)"])
    assert stopped.value.code == 2 and "reward.kl(coefficient=0.1) or penalty.kl" in capsys.readouterr().err


@pytest.mark.parametrize("call", ["value_error()", "cosine_grpo()", "replay()"])
def test_what_needs_another_recipe_or_an_argument_is_no_failure(call, capsys):
    try:
        __main__.run("check", [call])
    except SystemExit as stopped:
        assert stopped.code == 0
    out = capsys.readouterr().out
    assert "cannot be checked here" in out and "FAIL" not in out and "Traceback" not in out


@pytest.mark.full
def test_rounding_of_rewards_that_differ_little_is_no_dependence_on_the_order():
    assert checks.row_order(programs.Program(command.build("cosine_grpo(limit=256)")), random=False).passed


def test_a_piece_is_placed_at_its_seam():
    algorithm = battery.build("penalty.kl('k3', 0.1)")
    assert [p.seam for p in algorithm.objectives[0].loss] == ["ratio", "surrogate", "penalty"]
    assert battery.build(f"{HERE}.scalar()").objectives[0].loss[1].spec == "scalar()"
