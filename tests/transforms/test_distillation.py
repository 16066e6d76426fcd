"""Distillation of whole distributions from modules: the divergences, their scores, the piece, and a step."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import algorithms, models, types
from rljax.algorithms import interpreter
from rljax.config import resolve
from rljax.models.scores import coarse, packing, scoring
from rljax.run import programs
from rljax.transforms import advantage, modules, ops, penalty, reduce
from tests.support import tiny
from tests.support.enumeration import K2, K3, LOGITS, REF_LOGITS, SEQUENCE, STATE, VISITS, P, log_softmax

ONE = jax.devices()[:1]
BETAS = {"js": 0.5, "js_0.2": 0.2, "js_0.9": 0.9}


def exact(name, p, q):
    """Return the divergence of probabilities by its definition, in plain float64; 2306.13649, eq. 1 for js."""

    def kl(a, b):
        return np.sum(a * np.log(a / b), axis=-1)

    if name in BETAS:
        beta = BETAS[name]
        middle = beta * q + (1 - beta) * p
        return beta * kl(q, middle) + (1 - beta) * kl(p, middle)
    return kl(p, q) if name == "reverse_kl" else kl(q, p)


# --- the divergence ---------------------------------------------------------------------------------


def test_the_generalized_divergence_goes_to_both_kls():
    p, q = log_softmax(LOGITS), log_softmax(REF_LOGITS)
    with jax.enable_x64(True):
        for name in BETAS:
            np.testing.assert_allclose(ops.divergence(name, p, q), exact(name, np.exp(p), np.exp(q)), rtol=1e-12)
        for name, limit in (("js_1e-06", "forward_kl"), ("js_0.999999", "reverse_kl")):
            np.testing.assert_allclose(1e6 * ops.divergence(name, p, q), ops.divergence(limit, p, q), rtol=1e-5)
    assert ops.is_divergence("js_0.2") and not ops.is_divergence("js_-1") and not ops.is_divergence("js_")


def test_names_of_divergences_hold_their_modules():
    assert modules.parts(modules.divergence("js_0.2", "a", "b")) == ("js_0.2", ("a", "b"), False)
    assert modules.parts(modules.divergence("js", sampling=True)) == ("js", ("reference",), True)
    needs = types.Needs(divergence=frozenset({"js", modules.divergence("reverse_kl", "a")}))
    assert modules.compared(needs) == {"reference", "a"} and modules.reads_reference(needs)
    assert not modules.reads_reference(types.Needs(divergence=frozenset({"js/a"})))
    top = modules.divergence("js_0.2", "a", top=32)
    assert modules.parts(top) == ("js_0.2", ("a",), False) and modules.top(top) == 32
    assert modules.compared(modules.divergence_needs(top)) == frozenset() and modules.top("js/a@sampling") == 0


def merge(p, q, count):
    """Return probabilities of the ``count`` tokens that are most probable under q, and of all others together."""
    order = np.argsort(-q, axis=-1)

    def merged(x):
        x = np.take_along_axis(x, order, axis=-1)
        return np.concatenate([x[..., :count], x[..., count:].sum(axis=-1, keepdims=True)], axis=-1)

    return merged(p), merged(q)


@pytest.mark.full
def test_the_divergence_over_most_probable_tokens_grows_to_that_over_all():
    """The data-processing inequality: merging tokens never increases it."""
    rng = np.random.default_rng(5)
    p, q = (rng.dirichlet(np.full(12, 0.7), 6) for _ in range(2))
    order = np.argsort(-q, axis=1)
    sorted_ = [np.log(np.take_along_axis(x, order, axis=1)) for x in (p, q)]
    names, counts = ("reverse_kl", "forward_kl", "js_0.2"), (1, 2, 5, 11)

    @jax.jit
    def values(live, given):
        merged = [[coarse.merged(x, count) for x in (live, given)] for count in counts]
        return [[ops.divergence(name, *pair) for pair in (*merged, (live, given))] for name in names]

    with jax.enable_x64(True):
        for name, (*by_count, full) in zip(names, values(*sorted_), strict=True):
            for count, value in zip(counts, by_count, strict=True):
                np.testing.assert_allclose(value, exact(name, *merge(p, q, count)), rtol=1e-12)
            assert np.all(np.diff([np.zeros(6), *by_count, full], axis=0) >= -1e-15)
            np.testing.assert_allclose(by_count[-1], full, rtol=1e-12)  # eleven tokens, and the twelfth as the rest


# --- scores -----------------------------------------------------------------------------------------

STUDENT = models.Architecture(vocabulary=29, layers=1, width=16, heads=2, kv_heads=1, hidden=24)
TEACHERS = {"a": dataclasses.replace(STUDENT, layers=2, width=24, head_size=12), "b": STUDENT}
NEEDS = types.Needs(divergence=frozenset({"reverse_kl/a@sampling", "js_0.2/a", "reverse_kl/a/b", "forward_kl"}))
TOPS = {"reverse_kl/b@29": 29, "js_0.2/b@4": 4}  # of most probable tokens; the first has them all
ALL = NEEDS | types.Needs(divergence=frozenset(TOPS))
ENDS = np.array([5, 2, 4, 1])


@functools.cache
def networks():
    """Return the student, its reference, and the teachers, with parameters that are far from even."""
    rng = np.random.default_rng(0)

    def filled(architecture):
        model = models.build(architecture)
        shapes = jax.eval_shape(model.init, jax.random.key(0))
        return model, jax.tree.map(lambda x: rng.normal(0.1, 0.3, x.shape).astype(np.float32), shapes)

    return filled(STUDENT), filled(STUDENT), {name: filled(shape) for name, shape in TEACHERS.items()}


@functools.cache
def rollout():
    rng = np.random.default_rng(1)
    mask = (np.arange(5) < ENDS[:, None]).astype(np.float32)
    prompt = np.repeat(rng.integers(0, 29, (2, 3)), 2, axis=0).astype(np.int32)
    token, hinted = (rng.integers(0, 29, (4, n)).astype(np.int32) for n in (5, 4))
    seen = np.array([[1, 1, 1, 1], [0, 1, 1, 1], [0, 0, 1, 1], [1, 1, 1, 1]], np.float32)  # left-padded
    context = types.Context(hinted, seen, train_token=prompt, train_mask=np.ones((4, 3), np.float32))
    return types.Rollout(mask, np.zeros(4), np.arange(4) // 2, context=context, action=types.Action(token))


@functools.partial(jax.jit, static_argnames="packed")
def slopes(params, teachers, packed=False):
    """Return the gradient of a weighted sum of all divergences in student and teachers, and the divergences.

    What the teachers find most probable is scored before, in parts of the vocabulary.
    """
    (model, _), (_, reference), others = networks()
    options = {}
    if packed:
        lane, offset = packing.first_fit(jnp.asarray(ENDS).reshape(2, 2), 5)
        options = {"samples": 2, "places": packing.Places(lane.reshape(-1), offset.reshape(-1), 2, 2, 5)}

    asked = types.Needs(top=frozenset({29, 4}))
    held = scoring.score(others["b"][0], teachers["b"], rollout(), asked, temperature=0.7, chunk=8, vocabulary=8)

    def loss(params, teachers):
        rows = rollout().replace(scores={"b": held})
        given = {"teachers": {name: (others[name][0], tree) for name, tree in teachers.items()}, "reference": reference}
        scores = scoring.score(model, params, rows, ALL, temperature=0.7, chunk=8, vocabulary=8, **given, **options)
        terms = sorted(scores.divergence.items())
        return sum((1 + i) * jnp.sum(x) for i, (_, x) in enumerate(terms)), scores.divergence

    return jax.grad(loss, argnums=(0, 1), has_aux=True)(params, teachers)


def whole(model, params, sampling=False):
    """Return the tempered distribution before each completion token, [B, T, V], by one plain forward pass."""
    r = rollout()
    prompt, seen = (r.context.token, r.context.mask) if sampling else r.context.training
    token = jnp.concatenate([prompt, r.action.token], axis=1)
    hidden = model.apply(params, token, jnp.concatenate([seen, jnp.ones((4, 5))], axis=1))
    return jax.nn.log_softmax(model.logits(params, hidden)[:, -6:-1] / 0.7, axis=-1)


@pytest.mark.full
def test_a_divergence_from_a_module_is_that_of_whole_distributions():
    (model, params), reference, others = networks()
    given = {name: tree for name, (_, tree) in others.items()}
    (gradient, to_teachers), got = slopes(params, given)
    distributions = (whole(*m) for m in ((model, params), reference, *others.values()))
    p, ref, a, b = (np.exp(np.asarray(x, np.float64)) for x in distributions)
    hinted = np.exp(np.asarray(whole(*others["a"], sampling=True), np.float64))
    mask = rollout().mask
    apart = {"reverse_kl/a@sampling": hinted, "js_0.2/a": a, "reverse_kl/a/b": (a + b) / 2, "forward_kl": ref}
    merged = {name: (p, q) for name, q in apart.items()}
    for name, count in TOPS.items():
        merged[name] = merge(p, b, count) if count < 29 else (p, b)
    for name, pair in merged.items():
        want = exact(modules.parts(name)[0], *pair) * mask
        np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-5, err_msg=name)
    assert all(np.all(np.asarray(x) == 0) for x in jax.tree.leaves(to_teachers))

    def loss(params):
        live = whole(model, params)
        total = 0.0
        for i, name in enumerate(sorted(ALL.divergence)):
            q = np.log(apart.get(name, b))
            pair = live, jnp.asarray(q, jnp.float32)
            if TOPS.get(name, 29) < 29:
                order = np.argsort(-q, axis=2)
                pair = (coarse.merged(jnp.take_along_axis(x, order, 2), TOPS[name]) for x in pair)
            total += (1 + i) * jnp.sum(ops.divergence(modules.parts(name)[0], *pair) * mask)
        return total

    for (path, want), x in zip(
        jax.tree_util.tree_leaves_with_path(jax.jit(jax.grad(loss))(params)), jax.tree.leaves(gradient), strict=True
    ):
        np.testing.assert_allclose(x, want, rtol=1e-3, atol=1e-3, err_msg=jax.tree_util.keystr(path))


@pytest.mark.full
def test_packing_does_not_change_a_divergence_from_a_module():
    (_, params), _, others = networks()
    given = {name: tree for name, (_, tree) in others.items()}
    (gradient, _), got = slopes(params, given, packed=True)
    (expected, _), want = slopes(params, given)
    for name, x in want.items():
        np.testing.assert_allclose(got[name], x, rtol=1e-4, atol=1e-5, err_msg=name)
    for x, y in zip(jax.tree.leaves(gradient), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-3)


def test_a_divergence_needs_its_teacher():
    (model, params), (_, reference), _ = networks()
    with pytest.raises(ValueError, match="needs parameters of a, b"):
        scoring.score(model, params, rollout(), NEEDS, reference=reference)


# --- the piece --------------------------------------------------------------------------------------


def ascent(**arguments):
    """Return the expected direction of ascent of the piece in the enumerated world, [13, 3], visits held fixed."""
    piece = penalty.distillation(**arguments)
    (name,) = piece.needs.divergence
    objective = types.Objective(loss=(piece,), reduce=reduce.mean_over_tokens())
    ones = jnp.ones(SEQUENCE.shape)
    rows = types.Rollout(ones, ones[:, 0], jnp.arange(27))
    state = interpreter.init(types.Algorithm((objective,)))["objectives"][0]

    def loss(logits):
        live, teacher = jax.nn.log_softmax(logits), jax.nn.log_softmax(REF_LOGITS)
        value = ops.divergence(modules.parts(name)[0], live, teacher)[STATE]
        scores = types.Scores(logp=ones, divergence={name: value})
        term = interpreter.loss_terms(objective, rows, scores, state, jax.random.key(0)).terms["distillation"]
        return jnp.sum(P[:, None] * term)

    return -np.asarray(jax.grad(loss)(jnp.asarray(LOGITS)))


def test_the_expected_gradient_is_that_of_the_divergence_at_each_state():
    with jax.enable_x64(True):
        np.testing.assert_allclose(ascent(teachers=("t",)), -K2, atol=1e-12)  # that of on_policy_distillation
        np.testing.assert_allclose(ascent(divergence="forward_kl", coefficient=2.0), -2 * K3, atol=1e-12)
        got, step = ascent(teachers=("t", "u"), divergence="js", beta=0.2), 1e-6
    q = np.exp(log_softmax(REF_LOGITS))
    for i, e in enumerate(np.eye(3)):
        up, down = (exact("js_0.2", np.exp(log_softmax(LOGITS + s * step * e)), q) for s in (1, -1))
        np.testing.assert_allclose(got[:, i], -VISITS[:, 0] * (up - down) / (2 * step), atol=1e-8)


def test_the_advantage_of_several_teachers_is_that_of_their_mean_probability():
    rng = np.random.default_rng(2)
    a, b, pi = np.log(rng.uniform(0.1, 0.9, (3, 2, 4)))
    scores = {name: types.Scores(logp=jnp.asarray(x)) for name, x in (("a", a), ("b", b))}
    rows = types.Rollout(jnp.ones((2, 4)), jnp.zeros(2), jnp.arange(2), raw_logp=jnp.asarray(pi), scores=scores)
    piece = advantage.distillation(("a", "b"))
    out = piece.apply(rows, piece.init(), jax.random.key(0))[0].advantage
    np.testing.assert_allclose(out, np.log((np.exp(a) + np.exp(b)) / 2) - pi, rtol=1e-5, atol=1e-6)


# --- in a run ---------------------------------------------------------------------------------------

TAUGHT = "gkd(('teacher',), 'js', 0.2)"


def config(call=TAUGHT, **fields):
    c = tiny.config(call, mesh__data=1, **fields)
    c.module.teacher = rljax.module(width=16, heads=2, weights="random")
    return c


def test_a_teacher_is_frozen_has_logits_and_no_reference():
    step = programs.build(config(), devices=ONE).steps[0]
    assert [*step.shape.params] == ["policy"] and [*step.shape.frozen] == ["teacher"] and step.shape.reference is None
    assert step.setup.networks["teacher"].architecture.output == "logits"
    assert step.setup.phase.read == {} and step.setup.phase.teachers == ("teacher",)


BAD = [
    ("gkd(('tutor',))", {}, "uses the module 'tutor', which no phase trains"),
    ("gkd(beta=1.0)", {}, r"beta must be a number in \[1e-06, 0.999999\]"),
    ("gkd(('teacher',), demonstrations=4)", {}, "leaves no sample to the policy"),
    ("gkd(('teacher', 'policy'), top=4)", {}, "top=4: expected one teacher that reads the prompt of training"),
    ("gkd(top=4)", {}, "top=4: expected one teacher that reads the prompt of training"),
    ("gkd(('teacher',), 'reverse_kl')", {"seam__penalty": "distillation(('teacher',), 'hellinger')"}, "hellinger"),
]


@pytest.mark.parametrize(("call", "fields", "message"), BAD)
def test_what_cannot_be_is_refused(call, fields, message):
    with pytest.raises(ValueError, match=message):
        resolve.phases(config(call, **fields))


def test_the_most_probable_tokens_are_stored_with_the_rows():
    """The loss has no forward pass of the teacher: it reads what the rollout holds."""
    (phase,) = resolve.phases(config("gkd(('teacher',), 'reverse_kl', top=4)"))
    assert phase.teachers == () and phase.read == {"teacher": types.Needs(top=frozenset({4}))}
    assert "teacher" in phase.modules and phase.heads("teacher") == {"logits"}


@pytest.mark.full
def test_more_tokens_than_the_teacher_has_are_refused():
    with pytest.raises(ValueError, match=r"config.module.teacher: top=999 exceeds the \d+ tokens of its vocabulary"):
        programs.build(config("gkd(('teacher',), 'reverse_kl', top=999)"), devices=ONE)


def test_no_module_has_the_name_of_the_reference():
    c = config()
    c.module.reference = rljax.module()
    with pytest.raises(ValueError, match=r"config.module.reference: a module has another name than 'reference'"):
        resolve.phases(c)


@pytest.mark.full
def test_a_step_moves_the_policy_towards_its_teacher():
    """A teacher of another shape, demonstrations in the group: the teacher keeps its bits, the divergence falls."""
    piece = "+ distillation(('teacher',), 'reverse_kl', top=4)"  # stored with the rows, beside the divergence over all
    c = config("gkd(('teacher',), 'js', 0.2, demonstrations=1)", learner__microbatches=2, seam__penalty=piece)
    c.phase.main.optimizer = "adamw(learning_rate=3e-3, weight_decay=0.0)"
    program = programs.build(c, devices=ONE)
    (step,) = program.steps
    state = program.begin()
    kept = jax.device_get(state.frozen["teacher"])
    rows = step.rollout(state, program.key)
    assert np.sum(np.asarray(rows.on_policy) == 0) == 8
    values = []
    for _ in range(4):  # the same rows
        state, metrics = step.update(state, rows, program.key)
        values.append(float(metrics["distillation"]))
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(state.frozen["teacher"]), kept)
    assert 0 < values[-1] < 0.9 * values[0], values


@pytest.mark.full
def test_the_policy_at_the_start_of_the_step_teaches_under_the_prompt_with_the_hint():
    """Context distillation traces: rows sampled with a hint, trained without it."""
    piece = "+ distillation(('policy',), 'forward_kl', only='off_policy', prompt='sampling')"
    (step,) = programs.build(tiny.config("guide_grpo()", mesh__data=1, seam__penalty=piece), devices=ONE).steps
    key = jax.random.key(0)
    rows = jax.eval_shape(step.rollout, step.shape, key)
    assert rows.context.train_token.shape[1] < rows.context.token.shape[1]
    _, metrics = jax.eval_shape(step.update, step.shape, rows, key)
    assert metrics["distillation"].shape == () and step.shape.frozen == {} and step.shape.reference is None


def test_the_recipe_reads_what_it_says():
    (o,) = algorithms.TABLE["gkd"](teachers=("a", "b"), beta=0.1).objectives
    assert interpreter.objective_needs(o).divergence == {"js_0.1/a/b"}
    assert interpreter.needs(algorithms.TABLE["gkd"]()).divergence == {"js"}


# --- the previous round as the reference ------------------------------------------------------------


@pytest.mark.full
def test_rounds_of_preference_have_the_previous_round_as_reference():
    """Iterative DPO, and with demonstrations in the groups SPIN where they win: one phase for each round."""
    c = tiny.config("dpo()", mesh__data=1, seam__source="guided(1)")
    c.phases = ("round1", "round2")
    c.phase.round1 = c.phase.round2 = rljax.phase(steps=1)
    first, second = programs.build(c, devices=ONE).steps
    key = jax.random.key(0)
    start = first.begin(None, key)
    jax.tree.map(np.testing.assert_array_equal, start.reference, start.params["policy"])
    moved = start.replace(params=jax.tree.map(lambda x: x + 1.0, start.params))
    kept = jax.device_get(moved.params["policy"])
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(second.begin(moved, key).reference), kept)
