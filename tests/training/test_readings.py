"""What modules read in place of rows: texts and solutions behind prompts and completions, and what is scored there."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import types
from rljax.run import programs
from rljax.training import phases, readings
from rljax.transforms import reward
from tests.support import tiny

TASK = "arithmetic(operands=2, digits=1)"  # 7+8= is answered by 7+8=15;15
STUDENT = {"prompt": "{prompt}", "after": "{solution}"}
JUDGE = {"after": "=", "words": ("1", "0")}
SCORER = {"cut": ";", "after": ";{solution}"}
CRITIC = {"prompt": "+{solution};"}


def config(algorithm="ppo(kl=0.0)", seam="judged() | likelihood(verified=1.0)", **modules):
    c = tiny.config(algorithm, task=TASK, phase__main__seam__reward=seam)
    for name, fields in modules.items():
        c.module[name] = rljax.module(**fields)
    return c


@functools.cache
def setup():
    return programs.build(config(judge=JUDGE, scorer=SCORER, value=CRITIC), devices=jax.devices()[:1]).setups[0]


def rows(texts):
    """Return rows of the first training prompts with these completions, which end where the text has a full stop."""
    task = setup().task
    width, index = task.completion_length, jnp.arange(len(texts), dtype=jnp.int32)
    token, mask = np.full((len(texts), width), task.tokenizer.pad), np.zeros((len(texts), width), np.float32)
    for i, text in enumerate(texts):
        ids = task.tokenizer.encode(text.rstrip(".")) + [task.tokenizer.stop[0]] * text.endswith(".")
        token[i, : len(ids)], mask[i, : len(ids)] = ids, 1
    prompts = task.prompts(index, "train")
    return types.Rollout(
        mask=jnp.asarray(mask),
        reward=jnp.zeros(len(texts)),
        group=index,
        index=index,
        context=types.Context(prompts.token, prompts.mask),
        action=types.Action(jnp.asarray(token, jnp.int32)),
    )


def text(token, mask):
    """Return the text of the real tokens; the end of a completion is a full stop."""
    tokenizer = setup().task.tokenizer
    return "".join(
        "." if i in tokenizer.stop else tokenizer.decode([i]) for i in np.asarray(token)[np.asarray(mask) > 0]
    )


WRITTEN = ("1+2=3;4.", "9;9;123", "55.", "", "3+4=07;;")


def expected(name, prompt, completion):
    """Return prompt and completion as a module reads them, written with Python's strings."""
    one, other = map(int, prompt.rstrip("=").split("+"))
    solution = f"{one}+{other}={one + other};{one + other}"
    if name == "value":
        return f"{prompt}+{solution};", completion
    if name == "judge":
        return prompt, completion + "="
    thought = completion.rsplit(";", 1)[0] if ";" in completion else completion
    return prompt, f"{thought};{one + other}"


@pytest.mark.default_tier("scorer")
@pytest.mark.parametrize("name", ["judge", "scorer", "value"])
def test_a_row_is_read_with_its_texts(name):
    r, s = rows(WRITTEN), setup()
    out, kept, solved = jax.jit(lambda r: readings.read(s.reads[name], r, s.task, "train"))(r)
    for i, completion in enumerate(WRITTEN):
        prompt = text(r.context.token[i], r.context.mask[i])
        want = expected(name, prompt, completion)
        assert (text(out.context.token[i], out.context.mask[i]), text(out.action.token[i], out.mask[i])) == want
        assert want[1].startswith(text(r.action.token[i], kept[i]))
        answer = str(sum(map(int, prompt.rstrip("=").split("+"))))
        assert text(out.action.token[i], solved[i]) == (answer if name == "scorer" else "")


WIDTH = 40
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@functools.partial(jax.jit, static_argnums=0)
def outputs(model, params, token, mask):
    """Return the network's hidden states of one row by themselves, and what its head says there."""
    hidden = model.apply(params, token, mask)
    if model.architecture.output == "scalar":
        return model.scalar(params, hidden)[0]
    return jax.nn.log_softmax(model.logits(params, hidden)[0])


def alone(model, params, prompt, completion):
    """Return what the network says at each token of one row, from the last of the prompt on."""
    token = np.concatenate([prompt, completion])
    padded = np.pad(token, (0, WIDTH - token.size)).astype(np.int32)[None]
    out = outputs(model, params, padded, (np.arange(WIDTH) < token.size)[None] * 1.0)
    return np.asarray(out)[len(prompt) - 1 : token.size]


@pytest.mark.full
def test_scores_are_those_of_the_network_on_the_row_it_reads():
    r, s = rows(WRITTEN), setup()
    asked = {"judge": types.Needs(reward=True), "scorer": types.Needs(), "value": types.Needs(value=True)}
    for name, needs in asked.items():
        model = s.networks[name]
        params = jax.tree.map(
            lambda x: x + 0.1 * jnp.cos(jnp.arange(x.size)).reshape(x.shape), model.init(jax.random.key(1))
        )
        got = jax.jit(lambda p, r, name=name, needs=needs: phases.score(s, name, p, r, needs))(params, r)
        out, kept, solved = readings.read(s.reads[name], r, s.task, "train")
        out, got, kept, solved = jax.device_get((out, got, kept, solved))
        for i in range(len(WRITTEN)):
            answer = out.action.token[i][out.mask[i] > 0]
            want, count = alone(model, params, out.context.token[i][out.context.mask[i] > 0], answer), kept[i].sum()
            if name == "value":
                np.testing.assert_allclose(got.value[i], np.pad(want[:-1], (0, kept.shape[1] - count)), **CLOSE)
                continue
            written = np.take_along_axis(want[:-1], answer[:, None], axis=1)[:, 0]
            np.testing.assert_allclose(got.logp[i], np.pad(written[:count], (0, kept.shape[1] - count)), **CLOSE)
            if name == "judge":
                yes, no = (s.task.tokenizer.encode(word)[0] for word in JUDGE["words"])
                np.testing.assert_allclose(got.reward[i], want[-1, yes] - want[-1, no], **CLOSE)
                assert got.after_logp is None
            else:
                np.testing.assert_allclose(got.after_logp[i][solved[i]], written[count + 1 :], **CLOSE)
                np.testing.assert_array_equal(got.after_mask[i], solved[i])


@pytest.mark.full
def test_a_judge_is_trained_as_a_classifier_then_frozen_and_pays():
    c = config(seam="judged(samples=3)", judge=JUDGE)
    c.algorithm = "grpo(kl=0.0)"
    c.phases = ("judge", "main")
    c.phase.judge = rljax.phase(algorithm="reward_classifier(module='judge')", steps=2, warmup=1)
    program = programs.build(c, devices=jax.devices()[:1])
    first, second = program.steps
    assert program.model("judge").architecture.output == "logits"  # two words of the vocabulary, no other head
    state = first.begin(None, program.key)
    given = first.rollout(state, program.key)
    given = given.replace(reward=(given.action.token[:, 0] % 2 == 0) * 1.0)
    losses = []
    for _ in range(12):
        state, metrics = first.update(state, given, program.key)
        losses.append(float(metrics["judge/loss"]))
    assert losses[-1] < 0.8 * losses[0]
    held = second.begin(state, program.key)
    judge = jax.device_get(held.frozen["judge"])
    after, metrics = second.fused(held, program.key)
    assert all(map(np.array_equal, jax.tree.leaves(after.frozen["judge"]), jax.tree.leaves(judge)))
    assert 0 < metrics["reward"] < 1 and np.isfinite(metrics["gradient_norm"])


@pytest.mark.full
def test_a_student_reads_the_tasks_own_prompt_in_place_of_the_teachers():
    """The recipe's pieces run on what its step computes; what the teacher's prompt shows is not in the student's."""
    c = config("rlt()", "", student=STUDENT)
    c.phase.main.seam.source = "hinted(1.0)"
    s = programs.build(c, devices=jax.devices()[:1]).setups[0]
    r = rows(WRITTEN)
    shown = types.Context(jnp.ones((5, 9), jnp.int32), jnp.ones((5, 9)))
    out, _, solved = readings.read(s.reads["student"], r.replace(context=shown), s.task, "train")
    for i, completion in enumerate(WRITTEN):
        prompt = text(r.context.token[i], r.context.mask[i])
        one, other = map(int, prompt.rstrip("=").split("+"))
        solution = f"{prompt}{one + other};{one + other}"
        assert text(out.context.token[i], out.context.mask[i]) == prompt
        assert text(out.action.token[i], out.mask[i]) == completion + solution
        assert text(out.action.token[i], solved[i]) == solution


@pytest.mark.full
def test_verifree_trains_on_thoughts_with_the_solution_behind_them():
    c = config("verifree()", "")
    c.seam.source = "answered(';')"
    c.sampler.temperature = 1.0
    program = programs.build(c, devices=jax.devices()[:1])
    (step,) = program.steps
    state = step.begin(None, program.key)
    params = jax.device_get(state.params["policy"])
    r = jax.device_get(step.rollout(state, program.key))
    answer = np.asarray(r.extra["reference_answer"]) > 0
    paid = []
    for i in range(r.reward.size):
        prompt = text(r.context.token[i], r.context.mask[i]).rstrip("=")
        written = text(r.action.token[i], r.mask[i])
        solution = f"{sum(map(int, prompt.split('+')))}."
        assert text(r.action.token[i], answer[i]) in ("", solution)
        if answer[i].any():
            assert written.endswith(";" + solution)
            ids = (r.context.token[i][r.context.mask[i] > 0], r.action.token[i][r.mask[i] > 0])
            want = np.take_along_axis(alone(step.setup.networks["policy"], params, *ids)[:-1], ids[1][:, None], axis=1)
            np.testing.assert_allclose(r.raw_logp[i][r.mask[i] > 0], want[:, 0], **CLOSE)
        elif ";" in written:  # no room behind it
            token = [text(t, m) for t, m in zip(r.action.token[i][:, None], r.mask[i][:, None], strict=True)]
            assert token[::-1].index(";") < len(solution)  # tokens behind it; some have no text
        paid.append(np.exp(r.raw_logp[i][answer[i]].sum()) if answer[i].any() else 0.0)
    assert 4 < answer.any(axis=1).sum() < r.reward.size
    _, metrics = step.update(state, r, program.key)
    np.testing.assert_allclose(metrics["reward"], np.mean(paid), rtol=1e-4)
    assert metrics["accuracy"] == np.mean(r.extra["first_outcome"] == types.Outcome.CORRECT)  # not of the solutions
    assert metrics["gradient_norm"] > 0


# --- pieces -----------------------------------------------------------------------------------------


def paid(piece, **scores):
    count = len(next(iter(scores.values())).reward if "judge" in scores else scores["scorer"].after_logp)
    r = types.Rollout(jnp.ones((count, 2)), jnp.arange(count) * 1.0, jnp.zeros(count, int), scores=scores)
    out = piece.apply(r, piece.init(), jax.random.key(0))[0]
    return np.asarray(out.reward), np.asarray(out.valid)


def test_a_judge_pays_its_probability_or_draws_of_it():
    odds = jnp.array([0.0, 1.0, -2.0, jnp.nan])
    want = 1 / (1 + np.exp(-np.array([0.0, 1.0, -2.0])))
    got, valid = paid(reward.judged(), judge=types.Scores(reward=odds))
    np.testing.assert_allclose(got[:3], want, rtol=1e-6)
    assert got[3] == 0 and list(valid) == [1, 1, 1, 0]
    got, _ = paid(reward.judged(verified=2.0), judge=types.Scores(reward=odds))
    np.testing.assert_allclose(got[:3], np.add(want, [0, 2, 4]), rtol=1e-6)
    one, _ = paid(reward.judged(samples=1), judge=types.Scores(reward=jnp.full(4096, 1.0)))
    assert {*one} == {0.0, 1.0}
    assert abs(one.mean() - want[1]) < 4 * np.sqrt(want[1] * (1 - want[1]) / 4096)


def test_a_thought_is_paid_by_the_likelihood_of_the_solution():
    logp = np.array([[0.0, -1.0, -0.5, 0.0], [-2.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    mask = np.array([[0.0, 1, 1, 0], [1, 1, 0, 0], [0, 0, 0, 0]])
    held = types.Scores(after_logp=jnp.asarray(logp), after_mask=jnp.asarray(mask))
    for form, want in (
        ("product", [np.exp(-1.5), np.exp(-2)]),
        ("mean_probability", [(np.exp(-1) + np.exp(-0.5)) / 2, (np.exp(-2) + 1) / 2]),
        ("mean_log", [-0.75, -1.0]),
    ):
        got, valid = paid(reward.likelihood(form=form), scorer=held)
        np.testing.assert_allclose(got[:2], want, rtol=1e-6)
        assert list(valid) == [1, 1, 0]


def test_a_token_of_the_solution_counts_as_far_as_the_thoughts_of_a_group_decide_it():
    logp = np.log([[0.5, 0.2, 0.9], [0.5, 0.8, 0.9], [0.5, 0.4, 0.3], [0.1, 0.1, 0.1], [0.7, 0.7, 0.2]])
    group, valid = np.array([0, 0, 0, 0, 1]), np.array([1.0, 1, 1, 0, 1])
    begins = np.array([0, 2, 1, 0, 1])  # the solution stands behind completions of different lengths
    behind, mask = np.zeros((2, 5, 6))
    for row, begin in enumerate(begins):
        behind[row, begin : begin + 3], mask[row, begin : begin + 3] = logp[row], 1.0
    held = types.Scores(after_logp=jnp.asarray(behind), after_mask=jnp.asarray(mask))
    rows = types.Rollout(
        mask=jnp.ones((5, 2)), reward=jnp.zeros(5), group=jnp.asarray(group), valid=jnp.asarray(valid),
        scores={"scorer": held},
    )  # fmt: skip
    piece = reward.likelihood(form="spread")
    got = piece.apply(rows, piece.init(), jax.random.key(0))[0].reward
    spread = logp[:3].std(axis=0)
    assert spread[0] == 0
    np.testing.assert_allclose(got[:3], logp[:3] @ (spread / spread.sum()), rtol=1e-5)
    np.testing.assert_allclose(got[4], logp[4].mean(), rtol=1e-5)  # alone: every token counts alike


# --- errors -----------------------------------------------------------------------------------------

SUM = "likelihood()"
BAD = {
    r"prm.words=\('1', '0'\): no phase uses its rewards": ("implicit()", {"prm": {"words": ("1", "0")}}, False),
    "module.judge: phase 'main' reads numbers of it, and no phase has trained its head": (
        "judged()",
        {"judge": {}},
        False,
    ),
    "judge.after: {prompt} stands here": ("judged()", {"judge": {**JUDGE, "after": "{prompt}"}}, False),
    "prm.cut=';': phase 'main' uses its logp at every token": ("implicit()", {"prm": {"cut": ";"}}, False),
    r"scorer.after='1': phase 'main' reads the log-probs of the solution": (SUM, {"scorer": {"after": "1"}}, False),
    "two different words": ("judged()", {"judge": {"words": ("1", "1")}}, False),
    r"judge.words: '12' is 2 tokens": ("judged()", {"judge": {"words": ("1", "12")}}, False),
    r"judge.after: the tokenizer of the run cannot write 'yes\?'": (
        "judged()",
        {"judge": {**JUDGE, "after": "yes?"}},
        False,
    ),
    r"scorer.after: the program computes {solution}.*runs on the host": (
        SUM,
        {"scorer": {"after": "{solution}"}},
        True,
    ),
}


@pytest.mark.parametrize("message", BAD)
def test_settings_that_cannot_be(message, tmp_path):
    seam, modules, host = BAD[message]
    c = config("grpo(kl=0.0)", seam, **modules)
    if host:
        (tmp_path / "sums.jsonl").write_text(
            "".join(f'{{"question": "{i}+1=", "answer": "{i + 1}"}}\n' for i in range(20))
        )
        c.task = f"jsonl({str(tmp_path / 'sums.jsonl')!r}, heldout=0.5)"
    with pytest.raises(ValueError, match=message):
        programs.build(c, devices=jax.devices()[:1])


def test_a_module_that_follows_another_reads_what_it_reads_and_a_head_reads_the_rows():
    c = config("ppo(kl=0.0)", "likelihood('live')", value=CRITIC)
    c.module.live = rljax.module(follows="policy", rate=1.0, after="{solution}")
    c.module.target = rljax.module(follows="value")
    c.seam.advantage = "values(('target',)) | gae(1.0, 0.95)"
    reads = programs.build(c, devices=jax.devices()[:1]).setups[0].reads
    assert reads["target"] == reads["value"] != reads["live"]
    c.module.value.trunk = "policy"
    with pytest.raises(ValueError, match=r"value.trunk='policy': a head reads the rows as they are. Remove prompt"):
        programs.build(c, devices=jax.devices()[:1])


def test_an_exact_divergence_reads_the_rows_of_the_policy():
    c = config("gkd(teachers=('teacher',))", "", teacher={"prompt": "{solution}"})
    with pytest.raises(
        ValueError, match=r"config.module.teacher.prompt: phase 'main' takes an exact divergence from it"
    ):
        programs.build(c, devices=jax.devices()[:1])
