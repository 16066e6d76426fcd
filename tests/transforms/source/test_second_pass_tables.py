"""The passes on a policy that is a table; its gradient, by enumeration; the step; host tasks."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import types
from rljax.algorithms import compose
from rljax.run import loop, programs
from rljax.run.records import journals
from rljax.training import passes, phases, producers, steps
from rljax.training import problems as problems_lib
from rljax.training import rows as rows_lib
from rljax.training.producers import completions
from rljax.transforms import define, ratio, reduce, source, surrogate, weight
from rljax.transforms.source import edits
from tests.run.producers import test_host_path as host_path
from tests.sampling import sampling_cases as toy
from tests.support import tiny

# --- the passes on a policy that is a table -------------------------------------------


HINT = (1,)


@define.source
def hinted(plain: bool = True, text: str = "", twice: bool = False, share: float = 1.0):
    """Pass every prompt again with one token more, and keep the second pass."""

    def edit(pool, problems, rollout, solutions, count, key):
        row = jnp.arange(count, dtype=jnp.int32) // (2 if twice else 1) * 4
        part = jnp.asarray(problems.encode(text) if text else HINT, jnp.int32)
        return edits.prompts(rollout, row, jnp.arange(count) != (7 if twice else 1), (part, jnp.ones(part.shape)))

    def merge(first, second, edit):
        return edits.put(first, second, edit, jnp.ones(second.group.shape, bool))

    again = types.Again(edit=edit, merge=merge, plain=plain, share=share, longer=lambda problems, p, c: 1)
    return types.Source(again=again, off_policy=plain)


def toy_setup(piece):
    setup = tiny.program("grpo(kl=0.0)").steps[-1].setup
    changed = tiny.changed(setup, algorithm=dataclasses.replace(setup.algorithm, source=piece))
    return dataclasses.replace(changed, decoder=toy.TOY)


@functools.cache
def toy_passes(plain, twice=False):
    setup, key = toy_setup(hinted(plain=plain, twice=twice)), jax.random.key(3)

    @jax.jit
    def run(table):
        drawn = rows_lib.each_once(jnp.arange(8))
        prompts = setup.task.prompts(drawn.index, "train")
        rows = completions.sample(setup, table, (), jnp.int32(0), drawn, prompts, None, key)
        rows = passes.first(setup, rows)
        edit = passes.edited(setup, (), jnp.int32(0), rows, None, key)
        return rows, edit, passes.second(setup, table, jnp.int32(0), rows, edit, key)

    return jax.device_get(run(jnp.asarray(toy.TABLE, jnp.float32)))


def toy_logp(prompt, seen, token):
    """Return log-probs [B, T] of completions after prompts, by the table."""
    state = (prompt + 1) * (seen > 0)
    before = state.sum(axis=1, keepdims=True) + np.cumsum(token + 1, axis=1) - (token + 1)
    logits = toy.TABLE[before.astype(int) % len(toy.TABLE)]
    logp = logits - np.log(np.exp(logits).sum(axis=2, keepdims=True))
    return np.take_along_axis(logp, token[:, :, None], axis=2)[:, :, 0]


@pytest.mark.parametrize("plain", [True, False])
def test_behaviour_is_under_the_sampling_prompt_and_unused_prompts_count_for_nothing(plain):
    first, edit, second = toy_passes(plain)
    used = np.repeat(edit.used, 4)
    context = second.context
    want = toy_logp(context.token, context.mask, second.action.token)
    np.testing.assert_allclose(second.behaviour_logp[used], (want * second.mask)[used], atol=1e-5)
    other = toy_logp(first.context.token, first.context.mask, second.action.token)
    assert np.abs(want - other)[used].max() > 0.5  # the hint changes what is written
    assert not used.all() and not second.mask[~used].any() and not second.valid[~used].any()
    np.testing.assert_array_equal(second.on_policy, 0.0 if plain else 1.0)
    if plain:
        np.testing.assert_array_equal(context.train_token, first.context.train_token[np.repeat(edit.row, 4)])
    else:
        assert context.train_token is None


@pytest.mark.full
def test_two_edits_of_a_group_have_different_samples():
    _, edit, second = toy_passes(True, twice=True)
    np.testing.assert_array_equal(edit.token[0], edit.token[1])
    token = second.action.token.reshape(4, 2, 4, -1)
    assert np.any(token[:, 0] != token[:, 1], axis=(1, 2))[:3].all()  # one of the fourth is not used


def test_edits_of_another_shape_are_refused():
    setup = toy_setup(hinted(share=0.5))
    rows = jax.eval_shape(lambda: passes.first(setup, rows_lib.unsampled(setup, *drawn_prompts(setup))))
    short = dataclasses.replace(setup.algorithm.source.again, edit=lambda *a: edits.prompts(*narrow(a[2])))
    broken = tiny.changed(
        setup,
        algorithm=dataclasses.replace(setup.algorithm, source=dataclasses.replace(setup.algorithm.source, again=short)),
    )
    with pytest.raises(ValueError, match=r"Edit\.token: shape \(2, \d+\): expected \(4, \d+\)"):
        jax.eval_shape(lambda r: passes.edited(broken, (), jnp.int32(0), r, None, jax.random.key(0)), rows)


def drawn_prompts(setup):
    drawn = rows_lib.each_once(jnp.arange(8))
    return drawn, setup.task.prompts(drawn.index, "train")


def narrow(rows):
    return rows, jnp.arange(2), jnp.ones((2,), bool)


def test_a_text_that_the_tokenizer_cannot_write_is_named():
    setup = toy_setup(source.guide(text="hint"))
    with pytest.raises(ValueError, match=r"guide\(.*the tokenizer of the run cannot write 'hint'"):
        passes.longer(setup)
    written = problems_lib.of(toy_setup(source.guide(text="1+2")), jax.random.key(0)).encode("1+2")
    assert setup.task.tokenizer.decode(written) == "1+2" and len(written) == 3


@pytest.mark.full
def test_a_guide_continues_the_rows_of_the_policy():
    c = tiny.config("vine_ppo()", mesh__data=1, seam__source="vine(2, 3, module='guide')")
    c.module.guide = rljax.module(weights="random")
    p = programs.build(c, devices=jax.devices()[:1])
    (step,) = p.steps
    setup, state, key = step.setup, p.begin(), p.key
    producer = producers.make(setup)
    drawn = rows_lib.each_once(jnp.arange(setup.prompts))
    prompts = setup.task.prompts(drawn.index, "train")
    rows = producer.sample(state.params["policy"], (), state.step, drawn, prompts, None, key)
    _, second = jax.jit(lambda state, rows: producer.edit(state, rows, None, key))(state, rows)
    of_guide, of_policy = (
        phases.score(setup, name, setup.params(state, name), second, types.Needs()).logp for name in ("guide", "policy")
    )
    sampled = np.asarray(second.mask > 0)
    np.testing.assert_allclose(of_guide[sampled], second.raw_logp[sampled], atol=1e-5)
    assert np.abs(np.asarray(of_policy - second.raw_logp)[sampled]).max() > 1e-2
    head = np.asarray(second.extra["head"]) > 0  # what the policy wrote
    np.testing.assert_array_equal(second.action.token[head], np.repeat(rows.action.token, 6, axis=0)[head])
    assert head.any() and not np.asarray(second.on_policy).any() and setup.phase.writers == ("guide",)
    guide = jax.device_get(setup.params(state, "guide"))
    after, metrics = step.fused(state, key)
    assert tiny.equal(after.frozen["guide"], guide) and float(metrics["fired"]) > 0.5  # rows of two tokens are cut


# --- its gradient, by enumeration -----------------------------------------------------


EVERY = np.array(list(itertools.product(range(3), repeat=3)))  # completions of three tokens


PAID = (EVERY @ [1, 2, 1] % 5 < 2) * 1.0


def gradient(pieces, length, hint):
    """Return the expected ascent in the table [5, 3] of rows sampled with a hint, trained without it, and the truth."""
    every = EVERY[:: 3 ** (3 - length), :length] if length < 3 else EVERY
    paid = PAID[:: 3 ** (3 - length)] if length < 3 else PAID
    prompt = np.tile(toy.PROMPT, (len(every), 1))
    longer = np.concatenate([prompt, np.tile(hint, (len(every), 1)).astype(int)], axis=1)
    behaviour = toy_logp(longer, np.ones(longer.shape), every)
    state = (prompt + 1).sum(axis=1, keepdims=True) + np.cumsum(every + 1, axis=1) - (every + 1)

    def logp(table):
        rows = jax.nn.log_softmax(table)[state % 5]
        return jnp.take_along_axis(rows, every[:, :, None], axis=2)[:, :, 0]

    rollout = types.Rollout(
        mask=jnp.ones(every.shape),
        reward=jnp.asarray(paid),
        group=jnp.arange(len(every)),
        advantage=jnp.asarray(paid)[:, None] * jnp.ones(every.shape),
        behaviour_logp=jnp.asarray(behaviour),
        on_policy=jnp.zeros(len(every)),
    )
    algorithm = compose(loss=pieces, reduce=reduce.mean_over_rows_of_sums())
    share = np.exp(behaviour.sum(axis=1))  # the probability of each row

    def loss(now):
        rows = rollout.replace(proximal_logp=jax.lax.stop_gradient(now))
        return rljax.objective(algorithm, rows, types.Scores(logp=now))[0]

    def ascents(table):
        now, back = jax.vjp(logp, table)
        by_row = -len(every) * jax.grad(loss)(now)  # of the sum over rows
        return back(by_row * share[:, None])[0]

    table = jnp.asarray(toy.TABLE)
    ascent = jax.jit(ascents)(table)
    truth = jax.jit(jax.grad(lambda t: jnp.sum(jnp.exp(logp(t).sum(axis=1)) * paid)))(table)
    return np.asarray(ascent), np.asarray(truth)


NONE = [ratio.token(), surrogate.unclipped()]


TOKEN = [ratio.token("behaviour"), surrogate.unclipped()]


def test_without_a_correction_the_gradient_is_biased_and_with_the_behaviour_anchor_it_is_not():
    with jax.enable_x64(True):
        biased, truth = gradient(NONE, 1, HINT)
        assert np.abs(biased - truth).max() > 0.05
        corrected, truth = gradient(TOKEN, 1, HINT)
        np.testing.assert_allclose(corrected, truth, atol=1e-10)
        plain, truth = gradient(NONE, 1, ())  # an empty edit needs none
        np.testing.assert_allclose(plain, truth, atol=1e-10)


def test_a_tokens_ratio_corrects_its_token_and_not_the_prefix():
    product = [*NONE, weight.truncated_importance(float("inf"), level="product")]
    with jax.enable_x64(True):
        corrected, truth = gradient(product, 3, HINT)
        np.testing.assert_allclose(corrected, truth, atol=1e-10)
        biased, _ = gradient(TOKEN, 3, HINT)
        assert np.abs(biased - truth).max() > 0.01


# --- the step -------------------------------------------------------------------------


@pytest.mark.full
def test_a_step_scores_each_row_under_its_training_prompt():
    program = tiny.program("grpo(kl=0.01)", learner__epochs=2, log__rollout_rows=32)
    setup = program.steps[-1].setup
    piece = hinted(text="7")
    step = steps.make_step(tiny.changed(setup, algorithm=dataclasses.replace(setup.algorithm, source=piece)))
    state = step.begin(None, program.key)
    rollout = step.rollout(state, program.key)
    rollout = rollout.replace(reward=(jnp.arange(32) % 3 == 0) * 1.0)
    kept = jax.tree.map(jnp.copy, state)
    state, measured = step.update(state, rollout, program.key)
    rows = measured["rows"]
    again = np.asarray(rows.extra["pass"]) > 0
    np.testing.assert_array_equal(again, np.arange(32) // 4 != 1)  # one prompt is not used
    np.testing.assert_array_equal(rows.on_policy, ~again)
    assert np.all(np.asarray(rows.context.mask).sum(axis=1)[again] == rows.context.train_mask.sum(axis=1)[again] + 1)

    @jax.jit
    def logp(params, context):
        scored = rows.replace(context=context)
        return phases.score(step.setup, "policy", params, scored, types.Needs(), kept=False).logp

    context, written = rows.context, np.asarray(rows.mask) > 0
    sampling = logp(kept.params["policy"], types.Context(context.token, context.mask))
    training = logp(kept.params["policy"], types.Context(context.train_token, context.train_mask))
    np.testing.assert_allclose(rows.behaviour_logp[written], sampling[written], atol=1e-5)
    np.testing.assert_allclose(rows.proximal_logp[written], training[written], atol=1e-5)
    np.testing.assert_allclose(rows.ref_logp[written], training[written], atol=1e-5)  # the reference is the start
    assert np.abs(sampling - training)[again][written[again]].max() > 1e-3
    hidden = logp(kept.params["policy"], context.replace(token=0 * context.token, mask=0 * context.mask))
    np.testing.assert_array_equal(hidden, logp(kept.params["policy"], context))  # what was only sampled under
    assert measured["accuracy"] == np.mean(np.asarray(rows.extra["first_outcome"]) == types.Outcome.CORRECT)


# --- host tasks -----------------------------------------------------------------------


def test_verdicts_are_journalled_by_pass(tmp_path):
    verdict = types.Verdict(reward=np.float32([0, 1]), outcome=np.int32([0, 1]), parts={})
    other = verdict.replace(reward=np.float32([1, 1]))
    journal = journals.Journal(tmp_path)
    for step in (1, 2):
        journal.record(journals.VERDICTS, (step, 0), f"{step} first", verdict)
        journal.record(journals.VERDICTS, (step, 1), f"{step} second", other)
    path = tmp_path / "verdicts.jsonl"
    path.write_text(path.read_text().replace('"pass": 0, ', ""))  # as an earlier version wrote it
    again = journals.Journal(tmp_path, 1)
    assert again.has(journals.VERDICTS, (2, 1)) and not again.has(
        journals.VERDICTS, (1, 1)
    )  # the checkpoint has step 1
    np.testing.assert_array_equal(again.replay(journals.VERDICTS, (2, 0), "2 first").reward, verdict.reward)
    np.testing.assert_array_equal(again.replay(journals.VERDICTS, (2, 1), "2 second").reward, other.reward)
    changed = journals.Journal(tmp_path, 1)
    assert changed.replay(journals.VERDICTS, (2, 0), "2 first") is not None
    assert (
        changed.replay(journals.VERDICTS, (2, 1), "another") is None
    )  # of another second pass: the first one's record stays
    changed.record(journals.VERDICTS, (2, 1), "another", other)
    resumed = journals.Journal(tmp_path, 1)
    assert (
        resumed.replay(journals.VERDICTS, (2, 0), "2 first") is not None
        and resumed.replay(journals.VERDICTS, (2, 1), "another") is not None
    )


folder, moods = host_path.folder, host_path.moods


USED = host_path.ROWS // 2  # of a second pass


def run_of_host(folder, workdir):
    fields = {"phases": ("main",), "phase__main__steps": 3, "phase__main__evaluate": "", "log__report": False}
    seam = {"algorithm": "grpo(kl=0.0)", "seam__source": "templates(('', 'pens'))"}
    config = host_path.config(folder, **fields, **seam)
    return loop.train(config, workdir, progress=False, devices=host_path.ONE)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::rljax.environments.questions.task.LengthWarning")
def test_a_host_task_judges_both_passes_and_a_run_that_is_killed_between_them_replays(folder, moods, tmp_path):
    whole = run_of_host(folder, tmp_path / "whole")
    assert host_path.calls(moods) == 3 * (host_path.ROWS + USED)  # unused prompts are not judged
    records = host_path.read(tmp_path / "whole", "verdicts")
    assert [(r["step"], r.get("pass", 0)) for r in records] == [(s, p) for s in (1, 2, 3) for p in (0, 1)]
    (moods / "raise").write_text(str(host_path.calls(moods) + 2 * (host_path.ROWS + USED) + host_path.ROWS))
    with pytest.raises(RuntimeError, match="no such answer"):  # in the second pass of step 3
        run_of_host(folder, tmp_path / "run")
    (moods / "raise").unlink()
    before = host_path.calls(moods)
    resumed = run_of_host(folder, tmp_path / "run")
    assert host_path.calls(moods) - before in (USED, host_path.ROWS + USED)  # the rest is replayed
    for name in ("metrics", "verdicts", "rollouts"):
        one, two = (tmp_path / run / f"{name}.jsonl" for run in ("whole", "run"))
        assert one.read_bytes() == two.read_bytes(), name
    jax.tree.map(np.testing.assert_array_equal, whole.state, resumed.state)


# --- settings that cannot be ----------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": "guess()"}, "has a second pass, which needs a task of one turn"),
        ({"seam__source": "guide() | partial(segment=2)"}, "leaves no completion that guide"),
        ({"seam__source": "guide() | demonstrations()"}, "leaves no completion that guide"),
        ({"seam__source": "ghpo()", "learner__lanes": 2}, r"learner\.lanes=2.*trains rows of a group under several"),
        ({"seam__source": "ghpo(share=0.0)"}, "share"),
        ({"seam__source": "ghpo() | guide()"}, "both have a second pass"),
    ],
)
def test_settings_that_a_second_pass_cannot_have_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        tiny.program.__wrapped__("grpo(kl=0.0)", **{"seam__source": "guide()", **fields})


@pytest.mark.parametrize(
    ("algorithm", "piece"),
    [
        ("ppo(kl=0.05)", "reward.kl"),
        pytest.param("on_policy_distillation()", "distillation", marks=pytest.mark.full),
    ],
)
def test_log_probs_under_two_prompts_are_not_compared(algorithm, piece):
    with pytest.raises(ValueError, match=f"{piece}: the source trains rows under another prompt"):
        tiny.program.__wrapped__(algorithm, seam__source="guide()")


@pytest.mark.full
@pytest.mark.parametrize(
    ("algorithm", "piece"),
    [
        ("grpo(kl=0.0)", "hinted(0.5, chance=linear(1.0, 0.0, 2))"),
        ("grpo(kl=0.0)", "self_judged(('0', '1'), text='=', samples=2)"),
        ("exp_grpo()", "rethink(('+',), room=2)"),
        ("grpo(kl=0.0)", "intervene(1)"),
        ("guide_grpo(quantile=0.9)", "guide()"),
        ("brpo_budget(budgets='linear')", "anytime(cuts=2, summaries=2, room=1, train_summary=True)"),
    ],
)
def test_the_pieces_fit_a_step(algorithm, piece):
    tiny.program.__wrapped__(algorithm, seam__source=piece)


def test_a_recipe_that_corrects_nothing_is_noted():
    def notes(algorithm, piece):
        return " ".join(tiny.program.__wrapped__(algorithm, seam__source=piece).phases[0].notes)

    assert 'anchor="behaviour"' in notes("grpo(kl=0.0)", "guide()")
    assert "another prompt" not in notes("guide_grpo()", "guide(hint=0.25)") + notes("grpo(kl=0.0)", "ghpo()")


def test_guide_takes_gamma_or_the_quantile_that_sets_it():
    with pytest.raises(ValueError, match=r"gamma=0\.5 and quantile=0\.9 both set gamma"):
        tiny.program.__wrapped__("guide_grpo(gamma=0.5, quantile=0.9)")
