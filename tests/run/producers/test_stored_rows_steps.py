"""Training on rows, pairs and demonstrations of files: steps."""

import functools
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import types
from rljax.algorithms import interpreter
from rljax.config import resolve, schema
from rljax.run import loop, preview, programs
from rljax.run.producers import from_files
from rljax.training import phases
from rljax.training import rows as rows_lib
from rljax.training.producers import stored
from rljax.transforms import source
from rljax.transforms.source import chain
from tests.run.producers.stored_rows_cases import BYTES, PAIRS, built, config, reader, write
from tests.support import tiny


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return the paths of a file of pairs and of one of rows."""
    folder = tmp_path_factory.mktemp("stored")
    rows = [
        {"prompt": f"{p}+1=", "completion": str(i), "reward": float(i % 2), "prompt_value": 0.5}
        for p in range(9)
        for i in range(4)
    ]
    return write(folder / "pairs.jsonl", PAIRS), write(folder / "rows.jsonl", rows)


def test_the_order_is_a_shuffle_of_the_seed_anew_in_each_epoch(files):
    program = built("dpo()", f"stored({files[0]!r}, 'pairs')", batch__prompts=3)
    setup, key = program.setups[0], program.key
    assert setup.size == 9 and setup.samples == 2 and setup.rows == 6

    @jax.jit
    def drawn(cursor, key):
        return rows_lib.next_prompts(setup, types.TrainState(0, cursor, *(None,) * 7), key)

    steps = [jax.device_get(drawn(jnp.array([3 * i]), key)) for i in range(6)]
    order = np.concatenate([s.index for s in steps]).reshape(2, 9)
    assert [sorted(epoch) for epoch in order.tolist()] == [list(range(9))] * 2 and any(order[0] != order[1])
    again = np.concatenate([drawn(jnp.array([3 * i]), jax.random.key(1, impl="threefry2x32")).index for i in range(3)])
    assert any(again != order[0]) and sorted(again.tolist()) == list(range(9))
    given = stored.Stored(setup, setup.stored)
    rows = given.of(steps[1].position, steps[1].index)
    np.testing.assert_array_equal(rows.index, np.repeat(order[0, 3:6], 2))
    np.testing.assert_array_equal(rows.group, np.repeat([3, 4, 5], 2))
    np.testing.assert_array_equal(rows.reward, [1, 0] * 3)
    np.testing.assert_array_equal(rows.on_policy, 0)
    text = [
        program.tokenizer.decode(t[:n].tolist()) for t, n in zip(rows.action.token, rows.action.length, strict=True)
    ]
    assert text == [PAIRS[i][side] for i in order[0, 3:6] for side in ("chosen", "rejected")]
    part = given.of(steps[1].position, steps[1].index, np.array([1, 4]))  # the rows of one process
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b[[1, 4]]), part, rows)


def test_pieces_that_sample_are_refused_beside_it_and_filters_are_not(files):
    stays = source.stored(files[0], "pairs")
    both = chain.chain((stays, source.dynamic(2)))
    assert both.file == files[0] and both.oversample == 2 and both.off_policy and both.origin == "stored"
    with pytest.raises(ValueError, match=r"partial\(.*samples the policy, and stored\("):
        chain.chain((stays, source.partial(4)))
    with pytest.raises(ValueError, match=r"main\.batch\.samples=4: stored\(.*has groups of 2"):
        resolve.phases(config("dpo()", stays.spec, phase__main__batch__samples=4))
    with pytest.raises(ValueError, match=r"reads parts\['prompt_value'\]; stored\(.*reports none"):
        resolve.phases(config("a_lol()", f"stored({files[1]!r})"))


SMALL = {"model__width": 8, "model__heads": 1, "model__hidden": 8, "log__rollout_rows": 0, "batch__prompts": 4}


RECIPES = {
    **dict.fromkeys(("dpo()", "ipo()", "kto()", "simpo()", "orpo()"), "pairs"),
    **dict.fromkeys(("a_lol()", "a_lol_token()", "a_lol_reference_free()"), "rows"),
    **dict.fromkeys(("awr()", "awac()", "filtered_cloning()", "grpo(kl=0.0)"), "rows"),
    "sft()": "demonstrations",
}


def source_of(kind, files, more=""):
    return f"stored({files[0] if kind == 'pairs' else files[1]!r}, {kind!r}{more})"


def transformed(algorithm, **fields):
    """Return rows of 2 tokens after the rollout transforms."""
    count = fields["reward"].size
    rows = types.Rollout(
        mask=np.ones((count, 2), np.float32),
        episode=np.arange(count, dtype=np.int32),
        valid=np.ones(count, np.float32),
        on_policy=np.zeros(count, np.float32),
        **fields,
    )
    state, key = interpreter.init(algorithm), jax.random.key(0)
    return jax.jit(lambda rows: interpreter.transform(algorithm, rows, state, key)[0])(rows)


@pytest.mark.full
def test_a_lol_draws_rows_by_how_far_they_are_above_the_value_of_their_prompt(files):
    call = f"stored({files[1]!r}, parts=('prompt_value',)) | selective_replay()"
    algorithm = resolve.phases(config("a_lol()", call, batch__samples=4))[-1].algorithm
    reward = np.random.default_rng(0).choice([0.0, 0.6, 1.0], 512).astype(np.float32)
    value = np.full(512, 0.5, np.float32)
    rows = transformed(algorithm, reward=reward, group=np.arange(512) // 4, parts={"prompt_value": value})
    np.testing.assert_allclose(rows.advantage[:, 0], np.maximum(reward - 0.5, 0), atol=1e-6)
    pool = {"stored": (), "selective_replay": ()}
    kept, _ = jax.jit(algorithm.source.select, static_argnums=2)(rows, pool, 512, jax.random.key(0))
    low, high = (np.sum(np.isclose(kept.reward, r)) - np.sum(np.isclose(reward, r)) for r in (0.6, 1.0))
    assert np.min(kept.reward) > 0.5 and low + high == np.sum(reward == 0)
    share = np.sum(reward == 1) * 0.5 / np.sum(rows.advantage[:, 0])  # of the rows that are drawn again
    assert abs(high / (low + high) - share) < 4 * np.sqrt(share * (1 - share) / (low + high))


def test_a_reward_times_a_number_of_each_prompt_is_a_temperature_of_each_prompt():
    """The weights exp(beta_s (r - mean)) of FamO2O, whose universal policy reads beta_s in its prompt."""
    algorithm = resolve.phases(tiny.config("awr(beta=1.0, cap=1000.0)"))[-1].algorithm
    reward, beta = np.array([[0.0, 1.0, 0.5], [0.0, 1.0, 0.5]]), np.array([[0.5], [4.0]])
    rows = transformed(algorithm, reward=(beta * reward).reshape(-1).astype(np.float32), group=np.repeat([0, 1], 3))
    np.testing.assert_allclose(rows.advantage[:, 0], np.exp(beta * (reward - 0.5)).reshape(-1), rtol=1e-5)


def test_a_program_that_does_not_train_needs_no_file(tmp_path):
    """An evaluation of a checkpoint may be elsewhere, or of a task whose lengths are not those of the rows."""
    c = config("dpo()", f"stored({str(tmp_path / 'absent.jsonl')!r}, 'pairs')", **SMALL)
    with pytest.raises(ValueError, match="no such file"):
        programs.build(c, devices=jax.devices()[:1])
    c.seam.source += " | mopps()"  # whose statistics are those of as many prompts as a step draws, or more
    program = programs.build(c, devices=jax.devices()[:1], trains=False)
    assert program.stored[0].token.shape[1:] == (2, program.tasks[0].completion_length)
    assert program.steps[0].shape.params["policy"]


@pytest.mark.full
def test_a_check_of_a_run_reads_the_rows_and_writes_nothing(files, tmp_path):
    c = config("dpo()", source_of("pairs", files), **{**SMALL, "mesh__data": 8})
    text = "\n".join(preview.lines(c, tmp_path / "run", devices=8))
    assert re.search(r"note: stored rows: .*pairs\.jsonl: 18 rows in 9 groups of 2, without behaviour log-probs", text)
    assert "4 prompts x 2 samples" in text and not (tmp_path / "run").exists()


@functools.cache
def scoring(files):
    """Return the step of DPO by plain descent, its state, and log-probs of 8 stored rows with their gradient."""
    plain = {"phase__main__optimizer": "sgd(learning_rate=1.0)", "learner__clip_norm": 1e6, "phase__main__warmup": 0}
    program = built("dpo(beta=0.3)", source_of("pairs", files), **SMALL, **plain)
    step = program.steps[0]

    @jax.jit
    def score(params, rows, slope):
        def logp(params):
            return phases.score(step.setup, "policy", params, rows, types.Needs()).logp

        out, pull = jax.vjp(logp, params)
        return jnp.where(rows.mask > 0, out, 0.0), pull(slope * rows.mask)[0]

    return step, step.begin(None, program.key), program.key, score


@pytest.mark.full
def test_the_step_of_dpo_follows_the_formula(files):
    """Theta moves by beta sigmoid(-beta h) (grad log pi(y_w) - grad log pi(y_l)), averaged over pairs."""
    step, state, key, score = scoring(files)
    policy = jax.tree.map(lambda x: x * 1.3, state.params["policy"])  # away from the reference
    state = jax.tree.map(jnp.copy, state.replace(params={"policy": policy}))
    rows = jax.tree.map(jnp.asarray, step.rollout(state, key))
    live, fixed = (np.asarray(score(p, rows, rows.mask)[0]) for p in (policy, state.reference))
    h = (live - fixed).sum(axis=1).reshape(4, 2) @ [1.0, -1.0]
    assert np.abs(h).min() > 1e-4
    slope = (0.3 / (1 + np.exp(0.3 * h)) / 4)[:, None] * [1.0, -1.0]
    _, want = score(policy, rows, jnp.asarray(np.broadcast_to(slope.reshape(8, 1), live.shape), jnp.float32))
    before = jax.device_get(policy)
    after, _ = step.update(state, rows, key)
    moved = jax.tree.map(lambda a, b: np.asarray(a) - b, after.params["policy"], before)
    jax.tree.map(lambda m, w: np.testing.assert_allclose(m, w, atol=2e-6), moved, want)
    assert max(np.abs(m).max() for m in jax.tree.leaves(moved)) > 1e-3


@pytest.mark.full
@pytest.mark.parametrize("algorithm", RECIPES)
def test_a_step_on_stored_rows_follows_the_gradient_of(algorithm, files):
    kind = RECIPES[algorithm]
    call = source_of(kind, files, ", parts=('prompt_value',)" if algorithm.startswith("a_lol") else "")
    sizes = {"batch__prompts": 8} if kind == "demonstrations" else {"batch__samples": 2}
    setup = built(algorithm, call, **{**SMALL, **sizes}).setups[0]
    _, state, _, score = scoring(files)
    params = state.params["policy"]
    index = np.arange(setup.prompts)
    rows = jax.tree.map(jnp.asarray, stored.Stored(setup, setup.stored).of(index, index))
    bare = rows.replace(parts={}, behaviour_logp=None)
    fixed, _ = score(params, bare, bare.mask)
    rows, _ = interpreter.transform(
        setup.algorithm, rows.replace(ref_logp=fixed), interpreter.init(setup.algorithm), jax.random.key(0)
    )
    (o,) = setup.algorithm.objectives
    state = interpreter.init(setup.algorithm)["objectives"][0]
    batch, state = interpreter.prepare_minibatch(o, rows, types.Scores(logp=fixed), state, jax.random.key(0))

    @jax.jit
    def loss(logp):
        return interpreter.loss(
            o, batch.replace(proximal_logp=fixed), types.Scores(logp=logp), state, jax.random.key(0)
        )[0]

    slope = jax.grad(loss)(fixed)
    _, gradient = score(params, bare, slope)
    norm = sum(float(jnp.sum(g**2)) for g in jax.tree.leaves(gradient))
    moved = score(jax.tree.map(lambda p, g: p - 1e-3 / norm * g, params, gradient), bare, slope)[0]
    assert norm > 0
    np.testing.assert_allclose(jnp.sum(slope * (moved - fixed)), -1e-3, rtol=0.2)


def test_held_out_groups_have_other_prompts_and_are_the_same_in_each_run(tmp_path):
    rows = [{**p, "id": f"{p['id']}{n}", "rejected": str(p["id"] + n)} for p in PAIRS for n in (3, 4)]
    groups = reader("pairs").read(write(tmp_path / "p.jsonl", rows))
    assert groups.split(0.1) is groups  # 0.9 of a prompt
    whole, one = groups.split(0.5), reader("pairs").read(write(tmp_path / "q.jsonl", rows[::-1])).split(0.5)
    train, held = ({BYTES.decode(p) for p in x.prompt.tolist()} for x in (whole, whole.heldout))
    assert len(train) == 5 and len(held) == 4 and not train & held
    assert len(whole) == 10 and len(whole.heldout) == 8 and "8 further groups held out" in whole.describe()
    assert held == {BYTES.decode(p) for p in one.heldout.prompt.tolist()}
    for part in (whole, whole.heldout):
        for prompt, token in zip(part.prompt.tolist(), part.token[:, 0].tolist(), strict=True):
            assert BYTES.decode(prompt)[0] == BYTES.decode(token)[0]
    with pytest.raises(ValueError, match=r"heldout=1.0 leaves none of its 9 prompts"):
        groups.split(1.0)


@pytest.mark.full
@pytest.mark.parametrize("algorithm", ["dpo()", "bradley_terry()"])
def test_preferences_are_measured_on_held_out_pairs_of_the_file(algorithm, tmp_path):
    """All pairs that are trained on prefer 1 to 2; so do the held-out ones of one run, those of the other do not."""
    accuracy, module = {}, "policy" if algorithm == "dpo()" else "reward"
    for swapped in (False, True):
        pairs = [{"prompt": f"{i}+{j}=", "chosen": "1", "rejected": "2"} for i in range(9) for j in range(3)]
        path = tmp_path / f"{swapped}.jsonl"
        call = f"stored({write(path, pairs)!r}, 'pairs', heldout=0.34)"
        fields = {"phase__main__steps": 20, "phase__main__optimizer": "adam(learning_rate=1e-2)"}
        c = config(algorithm, call, phase__main__evaluate="result", **{**SMALL, **fields})
        c.log.report = False
        if module == "reward":
            c.module.reward = schema.module(width=8)
        program = programs.build(c, devices=jax.devices()[:1])
        held = program.setups[0].stored.heldout
        shown = {program.tokenizer.decode(t) for t in held.prompt.tolist()}
        assert len(held) == len(shown) == 9
        if swapped:
            turned = {"chosen": "2", "rejected": "1"}
            write(path, [p | turned if p["prompt"] in shown else p for p in pairs])
        out = loop.train(c, tmp_path / f"run{swapped}", progress=False, devices=jax.devices()[:1])
        ranking = out.evaluations[-1]["ranking"]
        assert {*ranking} == {module} and ranking[module]["pairs"] == len(held)
        accuracy[swapped] = ranking[module]["accuracy"][0]
    assert accuracy == {False: 1.0, True: 0.0}


@pytest.mark.full
def test_a_run_resumes_bit_for_bit_and_a_changed_file_is_refused(files, tmp_path):
    """``aipo`` reads behaviour log-probs, which the file does not have: those of the policy at the start."""
    path = tmp_path / "rows.jsonl"
    path.write_text(open(files[1]).read())
    c = config("aipo()", f"stored({str(path)!r})", **{**SMALL, "batch__samples": 2, "phase__main__evaluate": ""})
    c.phase.main.optimizer = "sgd(learning_rate=0.5)"
    run = functools.partial(loop.train, c, tmp_path / "run", progress=False, devices=jax.devices()[:1])
    c.phase.main.steps = 4
    whole = run()
    for step in ("3", "4"):  # as if the run had been killed after its second checkpoint
        shutil.rmtree(tmp_path / "run" / "checkpoints" / step)
    resumed = run()
    jax.tree.map(np.testing.assert_array_equal, whole.state, resumed.state)
    assert resumed.state.cursor.tolist() == [16] and len(resumed.history) == 4
    logp = resumed.program.stored[0].behaviour_logp
    np.testing.assert_array_equal(logp, whole.program.stored[0].behaviour_logp)
    step = whole.program.steps[0]
    state = step.begin(None, whole.program.key)
    np.testing.assert_array_equal(from_files.scored(step.producer, state.params["policy"]), logp)
    assert logp.min() < -1 and not logp[..., -1].any()  # no row has as many tokens
    (tmp_path / "run" / "stored-main.npz").write_bytes(b"")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "4")
    with pytest.raises(ValueError, match=r"stored-main\.npz is absent or damaged.*--fresh"):
        run()
    path.write_text(path.read_text().replace("1+1=", "1+2="))
    with pytest.raises(ValueError, match=rf"content of {path}: \w+ -> \w+"):
        run()
