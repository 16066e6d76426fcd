"""Domains of tasks, numbers of sources that move, and draws by domain."""

import collections
import functools
import json
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.curriculum import rollouts as study
from rljax import types
from rljax.algorithms import interpreter
from rljax.data import tokenizers
from rljax.environments import arithmetic
from rljax.environments.questions import own
from rljax.training import row_metrics
from rljax.training import rows as rows_lib
from rljax.transforms import define, schedule, source
from tests import tiny

SIZES = (5, 0, 40, 55)  # candidates of each domain
OF = np.random.default_rng(0).permutation(np.repeat(np.arange(len(SIZES)), SIZES))  # domain of each prompt


def problems(of=OF, domains=4):
    table = jnp.asarray(of, jnp.int32)
    return types.Problems(
        size=len(of),
        domains=domains,
        domain=lambda index: table[index],
        encode=lambda text: [],
        shuffled=lambda index: (index * 7 + 3) % len(of),
    )


def rollout(reward, domain, index=None, on_policy=None):
    """Return the rows of groups with rewards [P, G] of prompts of these domains [P]."""
    reward = np.asarray(reward, np.float32)
    each = functools.partial(np.repeat, repeats=reward.shape[1])
    return jax.tree.map(
        jnp.asarray,
        types.Rollout(
            mask=np.ones((reward.size, 1), np.float32),
            reward=reward.ravel(),
            group=each(np.arange(len(reward), dtype=np.int32)),
            index=each(np.arange(len(reward), dtype=np.int32) if index is None else np.asarray(index, np.int32)),
            domain=each(np.asarray(domain, np.int32)),
            outcome=(reward.ravel() > 0).astype(np.int32),  # types.Outcome
            on_policy=np.ones(reward.size, np.float32) if on_policy is None else np.asarray(on_policy, np.float32),
        ),
    )


def started(piece, of=OF, domains=4):
    return piece.init(rollout(np.zeros((2, 2)), [0, 0]), problems(of, domains))


def drawn(piece, pool, places=4096, key=0, of=OF, domains=4):
    return np.asarray(
        piece.choose(pool, problems(of, domains), jnp.zeros(places, jnp.int32), jax.random.key(key)).index
    )


def shares(piece, pool, **more):
    """Return how often each domain is drawn, of 4,096 draws."""
    return np.bincount(more.get("of", OF)[drawn(piece, pool, **more)], minlength=more.get("domains", 4)) / 4096


def close(got, want):
    """Compare frequencies of 4,096 draws with probabilities, at five standard deviations."""
    want = np.asarray(want, float)
    np.testing.assert_allclose(got, want, atol=5 * math.sqrt(0.25 / 4096))
    assert np.all(got[want == 0] == 0)


def softmax(x, counts=SIZES):
    weight = np.exp(np.asarray(x, float) - np.max(x)) * (np.asarray(counts) > 0)
    return weight / weight.sum()


# --- the draw -----------------------------------------------------------------------------------


def test_prompts_are_those_of_the_drawn_domains_without_replacement_while_there_are_any():
    piece = source.mixed((1.0, 5.0, 1.0, 2.0))
    pool = started(piece)
    close(shares(piece, pool), np.array([1, 0, 1, 2]) / 4)  # domain 1 has no prompts
    for key in range(5):
        index = drawn(piece, pool, places=30, key=key)
        for d, size in enumerate(SIZES):
            times = np.bincount(index[OF[index] == d], minlength=len(OF))[d == OF]
            assert times.size == size
            assert times.size == 0 or times.max() - times.min() <= 1
    alone = started(source.mixed((0.0, 1.0, 0.0, 0.0)))  # only a domain without prompts has weight
    assert {*OF[drawn(source.mixed((0.0, 1.0, 0.0, 0.0)), alone)]} == {0, 2, 3}


def test_only_candidates_are_drawn():
    piece = source.mixed((1.0, 1.0, 1.0, 1.0), candidates=10)
    kept = {int(i) for i in (np.arange(10) * 7 + 3) % len(OF)}
    assert {*drawn(piece, started(piece)).tolist()} == kept


@pytest.mark.parametrize(
    "piece", [source.sec(), source.dump(), source.shortfall(), source.ordered(0.5), source.mixed((1.0,))]
)
def test_a_task_without_domains_is_refused_by_name(piece):
    with pytest.raises(ValueError, match=rf"{piece.spec.partition('(')[0]}: the task reports no domains"):
        started(piece, np.zeros(4, int), 1)


def test_weights_of_a_mixture_are_checked():
    with pytest.raises(ValueError, match="the sum must be above 0"):
        source.mixed((0.0, 0.0))
    with pytest.raises(ValueError, match="2 weights, but the task has 4 domains"):
        started(source.mixed((0.5, 0.5)))


def test_draws_over_the_order_of_difficulty():
    of, k = np.repeat(np.arange(4), (10, 20, 30, 40)), np.arange(4)
    here = {"of": of, "domains": 4}
    for s in (0.0, 0.3, 1.0):
        piece = source.ordered(s)
        want = (1 - s) * (3 - k) + s * k
        close(shares(piece, started(piece, **here), **here), want / want.sum())
        piece = source.gaussian(s, 0.3)
        want = np.exp(-((k / 3 - s) ** 2) / (2 * 0.3**2))
        close(shares(piece, started(piece, **here), **here), want / want.sum())
    for share, want in ((0.05, [5, 0, 0, 0]), (0.25, [10, 15, 0, 0]), (1.0, [10, 20, 30, 40])):
        piece = source.easiest(share)
        close(shares(piece, started(piece, **here), **here), np.array(want) / sum(want))


# --- bandits ------------------------------------------------------------------------------------


def advantages(reward):
    """Return |r - mean| / std of groups [P, G], 0 where all are equal."""
    out = np.zeros_like(reward, float)
    for i, r in enumerate(reward):
        if r.max() > r.min():
            out[i] = abs(r - r.mean()) / math.sqrt(np.mean((r - r.mean()) ** 2))
    return out


def steps_of(seed, count=6, prompts=7, samples=4):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield rng.integers(0, 3, (prompts, samples)).astype(np.float32), rng.choice([0, 2, 3], prompts)


def test_sec_is_the_moving_average_of_absolute_advantages():
    piece, q = source.sec(learning_rate=0.3, temperature=0.2), np.zeros(4)
    pool = started(piece)
    for reward, domain in steps_of(1):
        rows, pool = piece.select(rollout(reward, domain), pool, reward.size, jax.random.key(0))
        assert rows.reward.size == reward.size
        for d in {*domain.tolist()}:
            q[d] = 0.3 * advantages(reward)[domain == d].mean() + 0.7 * q[d]
        np.testing.assert_allclose(pool["domains"], q, rtol=1e-5)
    close(shares(piece, pool), softmax(q / 0.2))
    flat = rollout([[0.0, 1.0, 1.0, 1.0]], [2], on_policy=[1, 1, 1, 0])  # a row by another author does not count
    _, pool = source.sec(1.0).select(flat, pool, 4, jax.random.key(0))
    np.testing.assert_allclose(pool["domains"][2], 2 * math.sqrt(2 / 3 * 1 / 3), rtol=1e-5)


def test_dump_is_an_upper_confidence_bound_over_a_window():
    piece, windows = source.dump(window=10, temperature=0.5), [collections.deque(maxlen=10) for _ in SIZES]
    pool, seen = started(piece), np.zeros(4)
    for reward, domain in steps_of(2):
        _, pool = piece.select(rollout(reward, domain), pool, reward.size, jax.random.key(0))
        for a, d in zip(advantages(reward), domain, strict=True):
            windows[d].extend(a)
            seen[d] += len(a)
        mean = np.array([np.mean(w) if w else 0.0 for w in windows])
        np.testing.assert_array_equal(pool["domains"]["seen"], seen)
        counts = np.clip(seen, 1, 10)
        np.testing.assert_allclose(pool["domains"]["advantage"].sum(axis=1) / counts, mean, rtol=1e-4, atol=1e-6)
    assert seen.max() > 10  # more than the window, in one step too
    close(shares(piece, pool), softmax((mean + np.sqrt(2 * np.log(seen.sum() + 1) / (seen + 1))) / 0.5))


def test_shortfall_is_what_a_domain_lacks_of_the_target():
    piece, mean = source.shortfall(target=1.5, temperature=0.4, learning_rate=0.25), np.zeros(4)
    pool = started(piece)
    for reward, domain in steps_of(3):
        _, pool = piece.select(rollout(reward, domain), pool, reward.size, jax.random.key(0))
        for d in {*domain.tolist()}:
            mean[d] = 0.25 * reward[domain == d].mean() + 0.75 * mean[d]
    np.testing.assert_allclose(pool["domains"], mean, rtol=1e-5)
    close(shares(piece, pool), softmax(np.maximum(0, 1.5 - mean) / 0.4))


SAMPLES = 8


def simulated(piece, steps, rate=lambda trained: np.array([1.0, 0.5, 0.0]), places=16):
    """Return the pool and the domains drawn in each step, with a learner of these success rates."""
    of, rng = np.repeat(np.arange(3), 50), np.random.default_rng(0)
    here = problems(of, 3)
    pool = piece.init(rollout(np.zeros((2, 2)), [0, 0]), here)
    choose = jax.jit(lambda pool, key: piece.choose(pool, here, jnp.zeros(places, jnp.int32), key).index)
    select = jax.jit(lambda rows, pool: piece.select(rows, pool, places * SAMPLES, jax.random.key(0))[1])
    trained, history = np.zeros(3), []
    for step in range(steps):
        domain = of[np.asarray(choose(pool, jax.random.key(step)))]
        reward = rng.random((places, SAMPLES)) < rate(trained)[domain][:, None]
        pool = select(rollout(reward, domain), pool)
        trained += np.bincount(domain, minlength=3)
        history.append(np.bincount(domain, minlength=3) / places)
    return pool, np.array(history)


def test_sec_finds_what_can_be_learned():
    # exact: E mean|A| over groups of 8 = sum over k of C(8, k) / 2^8 * 2 sqrt(k/8 (1 - k/8))
    expected = sum(math.comb(8, k) / 2**8 * 2 * math.sqrt(k / 8 * (1 - k / 8)) for k in range(9))
    _, history = simulated(source.sec(learning_rate=0.5, temperature=0.3), 120)
    want = softmax(np.array([0.0, expected, 0.0]) / 0.3, (1, 1, 1))
    np.testing.assert_allclose(history[40:].mean(axis=0), want, atol=0.06)


@pytest.mark.parametrize(
    "piece",
    [source.sec(temperature=0.2), source.dump(), pytest.param(source.alp(), marks=pytest.mark.full)],
    ids=["sec", "dump", "alp"],
)
def test_a_bandit_follows_the_learner_to_the_next_domain(piece):
    def rate(trained):  # a domain is learned in 200 prompts, and the next can be learned from then on
        skill = np.minimum(trained / 200, 1.0)
        return np.array([skill[0], skill[1] * (skill[0] >= 1), skill[2] * (skill[1] >= 1)])

    _, history = simulated(piece, 130, rate)
    peaks = [np.argmax(np.convolve(history[:, d], np.ones(15), "valid")) for d in range(3)]
    assert peaks[0] < peaks[1] < peaks[2], peaks
    uniform = simulated(source.mixed((1.0, 1.0, 1.0)), 130, rate)[1]
    assert np.all(abs(uniform.mean(axis=0) - 1 / 3) < 0.05)


def test_shortfall_draws_what_is_not_learned():
    _, history = simulated(source.shortfall(temperature=0.2), 60)
    np.testing.assert_allclose(
        history[20:].mean(axis=0), softmax(np.array([0.0, 0.5, 1.0]) / 0.2, (1, 1, 1)), atol=0.05
    )


# --- numbers that move --------------------------------------------------------------------------

METRICS = {"accuracy": jnp.asarray(1.0)}


def test_a_constant_schedule_is_the_number():
    plain, moving = source.sec(0.5, 0.2), source.sec(schedule.linear(0.5, 0.5, 3), schedule.linear(0.2, 0.2, 3))
    pool, numbers = started(plain), started(moving)
    for reward, domain in steps_of(4, count=2):
        rows = rollout(reward, domain)
        pool, numbers = (
            p.select(rows, x, reward.size, jax.random.key(0))[1] for p, x in ((plain, pool), (moving, numbers))
        )
        pool, numbers = plain.observe(pool, METRICS), moving.observe(numbers, METRICS)
    jax.tree.map(np.testing.assert_array_equal, pool, numbers["pool"])
    np.testing.assert_array_equal(drawn(plain, pool), drawn(moving, numbers))
    assert {k: int(v) for k, v in numbers["numbers"].items()} == {"learning_rate": 2, "temperature": 2}


def test_a_draw_moves_with_its_schedule_and_with_a_metric():
    here = {"of": np.repeat(np.arange(4), 25), "domains": 4}
    for centre in (schedule.linear(0.0, 1.0, 3), schedule.adaptive_difficulty(step=1 / 3, slope=100.0)):
        piece = source.gaussian(centre=centre, width=0.05)
        pool = started(piece, **here)
        for step in range(4):
            assert {*here["of"][drawn(piece, pool, **here)]} == {step}
            pool = piece.observe(pool, METRICS)
    piece = source.mixed((1.0, schedule.linear(0.0, 3.0, 1), 0.0, 0.0))
    pool = started(piece, **here)
    close(shares(piece, pool, **here), [1, 0, 0, 0])
    close(shares(piece, piece.observe(pool, METRICS), **here), [0.25, 0.75, 0, 0])
    assert piece.spec == "mixed(weights=(1.0, linear(start=0.0, end=3.0, steps=1), 0.0, 0.0), candidates=0)"


def test_an_oscillating_share_returns_and_an_adaptive_one_is_clamped():
    swing, state, values = schedule.oscillating(0.25, 1.0, 4), None, []
    for _ in range(6):
        state = swing.init() if state is None else swing.update(state, {})
        values.append(float(swing.value(state)))
    np.testing.assert_allclose(values, [0.25, 0.5, 1.0, 0.5, 0.25, 0.5], rtol=1e-6)
    climb = schedule.adaptive_difficulty(initial=0.99, target=0.5, slope=2.0, step=0.02)
    below = climb.update(climb.init(), {"accuracy": jnp.asarray(0.2)})
    np.testing.assert_allclose(below, 0.99 + 0.02 * math.tanh(2 * -0.3), rtol=1e-6)
    assert climb.update(climb.init(), METRICS) == 1.0


@define.source
def passed(share: types.Fraction = 0.5, scale: types.Number = 1.0, longer: types.Number = 1.0):
    """Pass rows again; only ``scale`` of the edit can move."""

    def edit(pool, problems, rollout, solutions, count, key):
        return rollout.reward * scale

    again = types.Again(
        edit=edit, merge=lambda first, second, e: first.replace(reward=longer * first.reward), share=share
    )
    return types.Source(again=again)


@define.source
def branching(bound: types.Number = 1.0):
    """Decide by a number in Python."""
    return types.Source(oversample=2 if bound > 1 else 1)


MOVING = schedule.linear(1.0, 3.0, 2)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: source.dynamic(oversample=MOVING), "oversample must be a whole number"),
        (lambda: source.dump(window=MOVING), "dump: window cannot be a schedule; window must be a whole number"),
        (lambda: passed(share=MOVING), r"passed: share cannot be a schedule; it decides Again\.share"),
        (lambda: branching(bound=MOVING), "branching: bound cannot be a schedule; it decides what is compiled"),
    ],
)
def test_numbers_that_fix_shapes_cannot_move(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_the_edit_of_a_second_pass_reads_a_number_that_moves_and_its_merge_cannot():
    piece, rows = passed(scale=MOVING), rollout([[1.0, 2.0]], [0])
    pool = piece.init(rows, problems())
    for want in (1.0, 2.0, 3.0):
        np.testing.assert_allclose(piece.again.edit(pool, problems(), rows, None, 1, None), [want, 2 * want])
        pool = piece.observe(pool, METRICS)
    np.testing.assert_array_equal(piece.again.merge(rows, rows, None).reward, rows.reward)
    piece = passed(longer=MOVING)
    with pytest.raises(ValueError, match=r"longer cannot be a schedule; Again\.merge reads it"):
        piece.again.merge(rows, rows, None)


# --- tasks with domains -------------------------------------------------------------------------


BYTES = tokenizers.make("bytes", ())


def bound(**arguments):
    return arithmetic.arithmetic(**arguments).bind(BYTES)


def decoded(token, mask):
    return [BYTES.decode(t[m > 0].tolist()) for t, m in zip(np.asarray(token), np.asarray(mask), strict=True)]


def test_sums_of_mixed_difficulty_take_turns_and_the_splits_stay_disjoint():
    task, texts = bound(digits=(1, 2), working=False), {}
    assert task.domains == 2 and task.domain_names == ("1 digit", "2 digits")
    for split, place in (("train", 0), ("heldout", 2)):
        index = jnp.arange(300, dtype=jnp.int32)
        prompts, domain = jax.jit(lambda i, s=split: (task.prompts(i, s), task.domain(i, s)))(index)
        np.testing.assert_array_equal(domain, index % 2)
        np.testing.assert_array_equal(prompts.index, index)
        texts[split] = decoded(prompts.token, prompts.mask)
        forms = (r"\d\+\d=", r"\d\d\+\d\d=")
        assert all(re.fullmatch(forms[i % 2], text) for i, text in enumerate(texts[split])), texts[split][:4]
        assert task.text(place, split) == texts[split][place]
    assert len({*texts["train"][::2]}) == 90 and len({*texts["heldout"][::2]}) == 10  # of the 100 with one digit
    assert not {*texts["train"]} & {*texts["heldout"]}
    assert (task.size("train"), task.size("heldout")) == (2 * 9000, 2 * 1000)
    with pytest.raises(ValueError, match=r"digits: \(2,\) is not a number, or several different ones"):
        bound(digits=(2,))


@pytest.mark.full
def test_sums_of_mixed_difficulty_are_judged_by_their_own_task():
    task, index = bound(digits=(1, 2)), jnp.arange(8, dtype=jnp.int32)
    answers = [str(sum(map(int, task.text(i, "train")[:-1].split("+")))) for i in range(8)]
    rows = [[*BYTES.encode(a), BYTES.eos] for a in answers]
    token, mask = tokenizers.padded(rows, task.completion_length, BYTES.pad)
    shown = task.demonstrations(index, "train", jax.random.key(0))
    verify = jax.jit(lambda token, mask: task.verify(index, "train", token, mask).reward)
    for pair in ((token, mask), shown):
        np.testing.assert_array_equal(verify(*pair), 1.0)
        assert not np.any(verify(jnp.roll(pair[0], 1, axis=0), jnp.roll(pair[1], 1, axis=0)))
    assert all(text.endswith((";" + a, a)) for text, a in zip(decoded(*shown), answers, strict=True))


def write(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path


def test_a_column_of_a_file_is_the_domain(tmp_path):
    kinds = ["b", "a", "b", 3, "a", "b"]
    path = write(tmp_path / "q.jsonl", [{"question": f"q{i}", "answer": "1", "kind": k} for i, k in enumerate(kinds)])
    more = write(tmp_path / "h.jsonl", [{"question": "new", "answer": "1", "kind": "late"}])
    task = own.jsonl(path, heldout=str(more), domain="kind", chat=False)
    assert task.domain_names == ("b", "a", "3", "late") and task.domains == 4
    assert own.jsonl(path, heldout=0.5, chat=False).domains == 1
    bound_task = task.bind(BYTES)
    got = jax.jit(lambda index: bound_task.domain(index, "train"))(jnp.arange(8))
    np.testing.assert_array_equal(got, [0, 1, 0, 2, 1, 0, 0, 1])
    np.testing.assert_array_equal(bound_task.domain(jnp.arange(1), "heldout"), [3])


def test_rows_without_a_domain_and_too_many_domains_are_refused_by_file_and_line(tmp_path):
    rows = [{"question": f"q{i}", "answer": "1", "kind": i} for i in range(1026)]
    with pytest.raises(ValueError, match=r"all\.jsonl.*1025.*more than 1,024 values; '1024' is one too many"):
        own.jsonl(write(tmp_path / "all.jsonl", rows), domain="kind", chat=False)
    del rows[2]["kind"]
    with pytest.raises(ValueError, match=r"some\.jsonl.*3.*'kind' \(domain\) is missing"):
        own.jsonl(write(tmp_path / "some.jsonl", rows), domain="kind", chat=False)


def test_metrics_are_split_by_domain():
    reward = np.array([[1, 0], [1, 1], [0, 0], [1, 0]])
    rows = rollout(reward, [2, 0, 0, 2])
    rows = rows.replace(valid=jnp.asarray([1, 1, 1, 1, 1, 0, 1, 1.0]))
    got = {k: float(v) for k, v in row_metrics.of_domains(rows, ("x", "y", "z")).items()}
    want = {"x": (2 / 3, 3 / 7), "y": (0, 0), "z": (0.5, 4 / 7)}
    for name, (mean, share) in want.items():
        assert got[f"reward/domain/{name}"] == pytest.approx(mean) == got[f"accuracy/domain/{name}"]
        assert got[f"share/domain/{name}"] == pytest.approx(share)
    assert row_metrics.domains(bound(digits=(1, 2))) == ("1 digit", "2 digits")
    assert row_metrics.domains(bound()) == ()


@pytest.mark.full
def test_a_step_draws_and_reports_by_domain():
    program = tiny.program(
        "golongrl()",
        task="arithmetic(digits=(1, 2), working=False)",
        seam__source="sec(temperature=linear(1.0, 0.5, 5), candidates=64)",
        log__rollout_rows=32,
    )
    step, key = program.steps[-1], program.key
    state = step.begin(None, key)
    kept = {*np.asarray(state.pool["pool"]["prompts"].index).tolist()}
    after, metrics = step.fused(state, key)
    rows = metrics["rows"]
    np.testing.assert_array_equal(rows.domain, step.setup.task.domain(rows.index, "train"))
    assert {*np.asarray(rows.index).tolist()} <= kept and len({*np.asarray(rows.index).tolist()}) == 8
    assert int(after.pool["numbers"]["temperature"]) == 1
    for number, name in enumerate(step.setup.task.domain_names):
        here = np.asarray(rows.domain) == number
        assert 0 < float(metrics[f"share/domain/{name}"]) == pytest.approx(np.mean(here))
        assert float(metrics[f"reward/domain/{name}"]) == pytest.approx(np.asarray(rows.reward)[here].mean())
    # golongrl reads them: the same rows, with successes, against the spread of each domain by hand
    of = np.asarray(rows.domain)[::4]
    won = np.random.default_rng(0).random((8, 4)) < np.where(of == 0, 0.6, 0.2)[:, None]
    spread = np.array([math.sqrt(won[of == d].var(axis=1, ddof=1).mean()) for d in (0, 1)])
    assert abs(spread[0] - spread[1]) > 0.02
    rows = rows.replace(reward=jnp.asarray(won.reshape(-1), jnp.float32), advantage=None)
    scaled = jax.jit(lambda r: interpreter.transform(step.setup.algorithm, r, after.algorithm, key)[0].advantage)(rows)
    want = (won - won.mean(axis=1, keepdims=True)) / spread[of][:, None]
    np.testing.assert_allclose(scaled, want.reshape(-1, 1) * rows.mask, atol=1e-4)


@pytest.mark.full
def test_rows_of_a_host_task_have_its_domains(tmp_path):
    kinds = [{"question": f"{i}+1=", "answer": str(i + 1), "kind": "xyz"[i % 3]} for i in range(20)]
    path = write(tmp_path / "q.jsonl", kinds)
    setup = tiny.program("grpo(kl=0.0)", task=f"jsonl({str(path)!r}, domain='kind')").steps[-1].setup
    index = jnp.arange(6, dtype=jnp.int32)
    token = jnp.zeros((6, setup.task.prompt_length), jnp.int32)
    rows = rows_lib.blank(setup, index, index, token, token * 1.0)
    np.testing.assert_array_equal(rows.domain, setup.task.domain(index, "train"))
    assert setup.problems(jax.random.key(0)).domains == 3 and len({*np.asarray(rows.domain).tolist()}) > 1


def test_rollouts_of_the_study_are_interpolated_between_measurements():
    flat = [[0.0]] * 3
    assert study.Curve([0, 100, 200], [0.5, 0.8, 1.0], flat).needed == pytest.approx(150)
    assert study.Curve([0, 100, 200], [0.95, 0.8, 1.0], flat).needed == 0
    assert study.Curve([0, 100, 200], [0.5, 0.8, 0.89], flat).needed == math.inf


def test_the_page_of_the_study_counts_a_seed_that_does_not_reach_the_target_with_its_budget(tmp_path):
    def curve(*accuracy):
        return study.Curve([16 * n for n in range(len(accuracy))], list(accuracy), [[a] for a in accuracy])

    curves = {"uniform": [curve(0.5, 1.0), curve(0.5, 0.7, 0.8)], "sec": [curve(0.8, 0.9), curve(0.5, 0.6, 0.89)]}
    rows = study.table(curves, study.QUICK).splitlines()[2:]
    assert rows[0].startswith("| uniform | 1 of 2 | >= 22 ")  # (12.8 + 32) / 2
    assert rows[1].startswith("| sec | 1 of 2 | >= 24 ") and f"| {math.sqrt(16 / 12.8):.2f} [" in rows[1]
    study.draw(curves, tmp_path / "rollouts.png")
    assert (tmp_path / "rollouts.png").stat().st_size
