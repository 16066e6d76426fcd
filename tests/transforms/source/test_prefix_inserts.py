"""Tokens written into the policy's own completion; in the step; tasks on the host."""

import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rich.console

import rljax
from rljax import types
from rljax.run.producers import verified
from rljax.run.records import journals
from rljax.run.reports import show_rollouts
from rljax.training import passes, phases
from rljax.training.learning import row_metrics
from rljax.transforms import ratio, source
from rljax.transforms.source import chain
from tests.support import tiny
from tests.transforms.source import test_sources as contract
from tests.transforms.source.prefix_cases import PROBLEMS, batch, edited, edits, merge, second_of, shown

# --- tokens written into the policy's own completion ----------------------------------


def continued_of(edit, reward):
    """Return the rows that continue the heads of edits: token 1000 and log-prob -2 behind them."""
    given = np.arange(12)[None, :] < np.asarray(edit.head.length)[:, None]
    rows = second_of(edit, 1, reward, width=12)
    return rows.replace(
        mask=1.0 - given,
        action=types.Action(np.where(given, edit.head.token, 1000), length=np.full(len(given), 12)),
        behaviour_logp=np.where(given, 0.0, -2.0),
        extra={**rows.extra, "head": given * 1.0},
        context=types.Context(token=edit.token, mask=edit.mask),
    )


def of_policy(reward, length):
    behaviour = np.full((len(reward), 12), -1.0)
    return batch(reward, samples=2, width=12, length=length, behaviour_logp=behaviour)


def test_a_finished_answer_is_thought_over_again_after_a_trigger():
    rows = of_policy([0, 1, 0, 0], [5, 5, 5, 12])
    piece = source.rethink(("ba", "c"), share=0.75, room=6)
    edit = edited(piece, rows, count=3)
    np.testing.assert_array_equal(edit.row, [0, 2, 1])  # the last one leaves no room
    assert all(edit.used) and piece.off_policy
    for row, token, length in zip(edit.row, edit.head.token, edit.head.length, strict=True):
        np.testing.assert_array_equal(token[:4], 10 * row + np.arange(4))  # without the token that ended it
        assert (token[4:length]).tolist() in ([1, 0], [2])
    merged = merge(piece, rows, continued_of(edit, [1, 0, 1]), edit)
    np.testing.assert_array_equal(merged.reward, [1, 1, 0, 0])
    np.testing.assert_array_equal(merged.extra["pass"], [1, 1, 0, 0])  # row 2 went wrong again and stays
    np.testing.assert_array_equal(merged.on_policy, [0, 0, 1, 1])
    paid, after = rows.replace(token_reward=rows.mask / 4), continued_of(edit, [1, 0, 1])
    paid = merge(piece, paid, after.replace(token_reward=after.mask / 2), edit).token_reward
    np.testing.assert_allclose(paid[0, :4], 1 / 4)  # of the first pass, which wrote these
    np.testing.assert_allclose(paid[0, int(edit.head.length[0]) :], 1 / 2)
    end = int(edit.head.length[0])
    trigger = (np.arange(12) >= 4) & (np.arange(12) < end)
    np.testing.assert_array_equal(merged.extra["head"][0], trigger)
    np.testing.assert_array_equal(merged.mask[0], ~trigger)
    np.testing.assert_array_equal(merged.behaviour_logp[0], np.where(trigger, 0, np.where(np.arange(12) < 4, -1, -2)))
    logp = jnp.where(merged.mask > 0, merged.behaviour_logp, -3.0)

    def moved(**seam):
        loss = jax.grad(lambda x: rljax.objective("exp_grpo()", merged, types.Scores(logp=x), **seam)[0])
        return np.asarray(jax.jit(loss)(logp))[:2]

    fit = np.where(merged.mask[:2] > 0, -0.1 / merged.mask[:2].sum(), 0.0)  # likelihood; the trigger stays
    np.testing.assert_allclose(moved(), fit, atol=1e-6)
    head = merged.extra["head"][:2]
    want = fit - 0.2 / 4 * head
    np.testing.assert_allclose(moved(seam={"penalty": "+ hint_nll(0.2)"}), want, atol=1e-6)
    drawn = edits(piece, rows, count=3)
    assert {int(drawn(jax.random.key(k)).head.length[0]) for k in range(20)} == {5, 6}  # either trigger
    with pytest.raises(ValueError, match="a text has 2 tokens; room=2"):
        edited(source.rethink(("ba",), room=2), rows, count=3)


def test_a_probe_behind_a_dead_end_has_the_log_prob_of_its_draw():
    rows = of_policy([0, 1, 0, 0], [5, 5, 5, 5])
    piece = source.probed(("ba", "bc", "cb"), share=1.0, room=6)
    edit = edited(piece, rows, count=4)
    np.testing.assert_array_equal(edit.row[:3], [0, 2, 3])
    np.testing.assert_array_equal(edit.used, [True, True, True, False])  # row 1 was right
    trie = {(1, 0): [2 / 3, 1 / 2], (1, 2): [2 / 3, 1 / 2], (2, 1): [1 / 3, 1.0]}
    merged = merge(piece, rows, continued_of(edit, [0, 1, 0, 1]), edit)
    np.testing.assert_array_equal(merged.reward, [0, 1, 1, 0])
    for row in (0, 2, 3):
        want = np.log(trie[tuple(merged.action.token[row, 4:6].tolist())])
        np.testing.assert_allclose(merged.extra["probe_logp"][row, 4:6], want, rtol=1e-6)
    np.testing.assert_array_equal(merged.mask[[0, 2, 3]], 1.0)  # the probe is trained too
    logp = jnp.asarray(np.where(np.arange(12) // 2 == 2, -5.0, merged.behaviour_logp))
    got = np.exp(
        ratio.mixture(0.25).apply(types.Loss(), merged, types.Scores(logp=logp), (), jax.random.key(0)).log_ratio
    )
    np.testing.assert_allclose(got[0, [0, 3, 6, 11]], 1.0, rtol=1e-6)  # what the policy wrote
    mu = np.exp(merged.extra["probe_logp"][0, 4:6])
    np.testing.assert_allclose(got[0, 4:6], np.exp(-5) / (0.75 * np.exp(-5) + 0.25 * mu), rtol=1e-5)
    np.testing.assert_array_equal(merged.extra["probe_logp"][1], rows.behaviour_logp[1])


@pytest.mark.parametrize("piece", [source.rethink(("ba",), share=0.5, room=6), source.probed(("ba",), 0.5, room=6)])
def test_what_is_written_behind_a_completion_leaves_its_head_a_head(piece):
    rows = of_policy([0, 0], [5, 12])
    head = np.zeros((2, 12), np.float32)
    head[:, :2] = 1  # of ``prefixed`` in a chain
    rows = rows.replace(mask=rows.mask - head, extra={**rows.extra, "head": head})
    edit = edited(piece, rows, count=1)
    merged = merge(piece, rows, continued_of(edit, [1]), edit)
    assert merged.extra["pass"][0] == 1
    written = merged.mask + merged.extra["head"]
    np.testing.assert_array_equal(written[0], 1)  # as ``rows.written`` reads it: the reports show these tokens
    np.testing.assert_array_equal(merged.extra["head"][0, :4], [1, 1, 0, 0])
    trained = "probe_logp" in merged.extra
    np.testing.assert_array_equal(merged.mask[0, 4:6], trained)
    np.testing.assert_array_equal(merged.extra["head"][0, 4:], [not trained] * 2 + [0] * 6)


def test_the_expert_writes_where_a_wrong_completion_leaves_the_demonstration():
    rows = of_policy([0, 1, 0, 0], [12] * 4)
    token = np.array(rows.action.token)
    token[0, :3], token[2, :12], token[3, 0] = [100, 101, 102], 100 + np.arange(12), 7
    rows = rows.replace(action=rows.action.replace(token=token))
    piece = source.intervene(tokens=2, share=1.0)
    edit = edited(piece, rows, count=4, solutions=shown(9, 9, 9, 9, width=12))
    np.testing.assert_array_equal(edit.row[:2], [0, 3])
    np.testing.assert_array_equal(edit.used, [True, True, False, False])  # right; has the whole demonstration
    np.testing.assert_array_equal(edit.head.length, [5, 2, 0, 0])
    merged = merge(piece, rows, continued_of(edit, [1, 0, 0, 0]), edit)
    np.testing.assert_array_equal(merged.action.token[0], [100, 101, 102, 103, 104] + [1000] * 7)
    np.testing.assert_array_equal(merged.mask[0], [1, 1, 1, 0, 0] + [1] * 7)  # the expert's tokens have no gradient
    np.testing.assert_array_equal(merged.extra["head"][[0, 3], :5], [[0, 0, 0, 1, 1], [1, 1, 0, 0, 0]])
    np.testing.assert_array_equal(merged.behaviour_logp[0], [-1] * 3 + [0] * 2 + [-2] * 7)
    np.testing.assert_array_equal(merged.action.token[2], rows.action.token[2])


def test_a_rewritten_demonstration_counts_if_it_is_right_and_its_group_failed():
    piece = source.expert_rewrite(before="b", after="cd", room=3)
    rows = batch([0, 0, 1, 0, 0, 0], samples=2, width=4)
    more = piece.again.longer(PROBLEMS, 3, 4)
    wide = jax.tree.map(lambda x: np.pad(x, ((0, 0), (more, 0))), rows.context)
    edit = edited(piece, rows.replace(context=wide), count=2, solutions=shown(3, 3, 3, 3, 4, 4, width=4))
    np.testing.assert_array_equal(edit.row, [0, 4])
    np.testing.assert_array_equal(edit.token[0, -8:], [99, 99, 99, 1, 100, 101, 2, 3])  # without end-of-sequence
    np.testing.assert_array_equal(edit.mask.sum(axis=1), [8, 9])
    merged = merge(piece, rows, second_of(edit, 1, [1, 0], width=4), edit)
    np.testing.assert_array_equal(merged.reward, [0, 1, 1, 0, 0, 0])
    np.testing.assert_array_equal(merged.extra["pass"], [0, 1, 0, 0, 0, 0])


# --- in the step ----------------------------------------------------------------------


@pytest.mark.full
def test_what_follows_a_head_is_sampled_scored_and_paid_as_one_completion():
    step, state, key = contract.step_of(source.prefixed(0.5))
    rows = step.rollout(state, key)
    head, params = np.asarray(rows.extra["head"]), state.params["policy"]
    assert head.sum() > 0 and not np.any(head * rows.mask)
    score = jax.jit(lambda rows: phases.score(step.setup, "policy", params, rows, types.Needs()).logp)
    logp = np.asarray(score(rows))
    np.testing.assert_allclose(logp * rows.mask, rows.behaviour_logp * rows.mask, atol=1e-5)
    assert np.all(logp[head > 0] < 0)  # the tokens of a head have log-probs, which hint_nll reads
    verdict = step.setup.verify(rows.index, "train", rows.action.token, rows.mask + head)
    np.testing.assert_array_equal(rows.reward, verdict.reward)
    rows = rows.replace(extra={**rows.extra, "now": jnp.zeros_like(rows.group)})
    metrics = jax.jit(lambda rows: row_metrics.metrics(rows, judged=True))(rows)
    np.testing.assert_allclose(metrics["head"], head.sum(axis=1).mean(), rtol=1e-6)
    np.testing.assert_allclose(metrics["length"], rows.mask.sum(axis=1).mean(), rtol=1e-6)
    np.testing.assert_allclose(metrics["truncated"], np.mean(rows.finish == types.Finish.LENGTH), rtol=1e-6)


@pytest.mark.full
def test_branches_continue_the_tokens_of_the_row_that_was_cut():
    step, state, key = contract.step_of(source.cure(share=0.25, branches=3))
    rows = jax.device_get(step.rollout(state, key))
    plain = contract.rows_of(contract.PLAIN)
    first = plain.action.length[::4] > 1  # a row of one token has none that does not end it
    kept = (np.arange(rows.group.size) % 4 == 0) | ~np.repeat(first, 4)
    assert 0 < first.sum()
    np.testing.assert_array_equal(rows.extra["pass"], ~kept)
    np.testing.assert_array_equal(rows.action.token[kept], plain.action.token[kept])
    cut, head = np.repeat(rows.action.token[::4], 4, axis=0), rows.extra["head"] > 0
    np.testing.assert_array_equal(rows.action.token[head], cut[head])
    assert head.any() and np.any(rows.action.token[~kept] != cut[~kept])
    np.testing.assert_array_equal(rows.episode, np.arange(rows.group.size))


@pytest.mark.full
def test_rows_are_continued_from_the_ends_of_steps_that_the_policy_attends_to():
    step, state, key = contract.step_of(source.attended("+", share=0.25, forks=2, apart=1))
    rows = jax.device_get(step.rollout(state, key))
    length, second = rows.extra["head"].sum(axis=1).astype(int), rows.extra["pass"] > 0
    assert second.any() and np.all(length[second] > 0)
    (delimiter,) = step.setup.task.tokenizer.encode("+")
    assert np.all(rows.action.token[second, length[second] - 1] == delimiter)
    looked = passes.attended(step.setup, state.params["policy"], contract.rows_of(contract.PLAIN), key)
    score, before = looked.extra["attention"], np.roll(looked.action.token == delimiter, 1, axis=1)
    inside = np.arange(score.shape[1])[None, :] < looked.action.length[:, None]
    before[:, 0] = False
    np.testing.assert_array_equal(score >= 0, before & inside)
    assert np.any(before & inside)


@pytest.mark.full
def test_what_the_policy_wrote_before_and_behind_a_probe_has_the_log_probs_that_it_was_sampled_with():
    step, state, key = contract.step_of(source.probed(("+", "1"), share=1.0, room=2))
    rows, params = step.rollout(state, key), state.params["policy"]
    score = jax.jit(lambda rows: phases.score(step.setup, "policy", params, rows, types.Needs()).logp)
    logp, rows = np.asarray(score(rows)), jax.device_get(rows)
    plain, again = contract.rows_of(contract.PLAIN), rows.extra["pass"] > 0
    assert again.any() and not again.all() and not np.any(rows.reward[again & (plain.reward > 0)])
    column, at = np.arange(rows.mask.shape[1])[None, :], (plain.action.length - 1)[:, None]
    probe = again[:, None] & (column == at)
    np.testing.assert_allclose(rows.extra["probe_logp"][probe], np.log(0.5), rtol=1e-6)
    mine = (rows.mask > 0) & ~probe
    np.testing.assert_allclose(logp[mine], rows.behaviour_logp[mine], atol=1e-5)
    before = again[:, None] & (column < at)
    np.testing.assert_array_equal(rows.action.token[before], plain.action.token[before])
    np.testing.assert_array_equal(rows.behaviour_logp[before], plain.behaviour_logp[before])
    assert np.all(rows.mask[probe] == 1) and np.any(mine & again[:, None] & (column > at))


@pytest.mark.full
def test_the_recipe_of_budgets_trains_on_cut_thoughts():
    program = tiny.program("brpo_budget()", seam__source="anytime(cuts=2, summaries=2, room=1)")
    state, metrics = program.steps[-1].fused(program.steps[-1].begin(None, program.key), program.key)
    assert metrics["rows"].extra["cut_reward"].shape == (4, 2) and np.isfinite(metrics["loss"])
    assert int(state.step) == 1
    with pytest.raises(ValueError, match=r"extra\['cut_reward'\], extra\['segment'\], which neither its source"):
        tiny.program("brpo_budget()")


def test_a_head_is_shown_before_what_the_policy_wrote():
    tokens = {"text": ["1", "2", "3"], "advantage": [None, None, 0.5]}
    record = {"step": 1, "index": 0, "group": 0, "prompt": "1+1=", "completion": "123", "reward": 1.0, "parts": {}}
    console = rich.console.Console(record=True, width=80, file=io.StringIO())
    show_rollouts.show([{**record, "head": 2, "tokens": tokens}], console=console)
    text = console.export_text(styles=True)
    assert "head 2 tokens" in text and "\x1b[2;3m1" in text


# --- tasks on the host ----------------------------------------------------------------


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::rljax.environments.questions.task.LengthWarning")
def test_a_host_task_reads_the_demonstrations_that_a_source_mixes_in_or_begins_with(tmp_path):
    rows = [{"question": f"{i} + 1 =", "answer": f"#### {i + 1}"} for i in range(24)]
    for name, part in (("train", rows[:16]), ("test", rows[16:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    fields = {
        "task": f"gsm8k(path={str(tmp_path)!r}, prompt_length=32, completion_length=12)",
        "verifier__workers": 1,
        "verifier__chunks": 2,
    }
    program = tiny.program("luffy()", seam__source="+ prefixed(0.5)", **fields)
    step = program.steps[-1]
    with verified.verifiers(program.setups[-1].task, program.setups[-1].settings.verifier) as workers:
        journal = journals.Journal()
        out = verified.Verified(program, step, workers, journal, 2)(step.begin(None, program.key))
    out = jax.device_get(out)
    shown = np.arange(out.group.size) % 4 == 3
    np.testing.assert_array_equal(out.on_policy, ~shown)
    token, mask = step.setup.task.demonstrations(out.index, "train")
    np.testing.assert_array_equal(out.mask[shown], mask[shown])
    np.testing.assert_array_equal(out.action.token[shown] * mask[shown], (token * mask)[shown])
    np.testing.assert_array_equal(out.reward[shown], 1.0)
    head = out.extra["head"] > 0
    np.testing.assert_array_equal(out.action.token[head], token[head])
    assert head[~shown].any(axis=1).all() and not head[shown].any()


def pays(completion):
    return 1.0


def test_what_cannot_begin_a_completion_is_refused_by_name(tmp_path):
    for pieces in ((source.partial(2), source.prefixed(0.5)), (source.demonstrations(), source.prefixed(0.5))):
        with pytest.raises(ValueError, match=r"leaves no completion that prefixed\(share=0.5\) could begin"):
            chain.chain(pieces)
    with pytest.raises(ValueError, match=r"prefixed\(share=0.5\) continues completions, and task 'guess' is a world"):
        tiny.program(seam__source="prefixed(0.5)", task="guess()")
    for i, name in enumerate(("train", "test")):
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"question": f"What is {i}?"}) + "\n")
    train, heldout = str(tmp_path / "train.jsonl"), str(tmp_path / "test.jsonl")
    reward = "tests.transforms.source.test_prefix_inserts:pays"
    task = f"jsonl(path={train!r}, heldout={heldout!r}, answer='', reward={reward!r})"
    with pytest.raises(ValueError, match=r"has no demonstration for 1 rows .*set demonstration to a column"):
        tiny.program(seam__source="prefixed(0.5)", task=task)


def test_partial_rows_of_a_host_task_are_refused(tmp_path):
    for i, name in enumerate(("train", "test")):
        row = {"question": f"1 + {i} =", "answer": f"#### {i + 1}"}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(ValueError, match=r"partial.* carries rows over inside the program"):
        tiny.program(seam__source="partial(2)", task=f"gsm8k(path={str(tmp_path)!r})")
