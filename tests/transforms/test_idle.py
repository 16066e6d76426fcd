"""Declared arguments without effect, against the gradient; and what a config says about them."""

import ast
import functools
import inspect
import re
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from experiments.example_pieces import pieces
from rljax import transforms, types
from rljax.algorithms import interpreter
from rljax.config import effects, files, resolve
from rljax.language import hints
from rljax.run.records import glossary
from rljax.sampling import processors
from rljax.transforms import modules, ops, ratio, reduce, surrogate
from tests.support import batch

KEY = jax.random.key(0)
OTHERS = {
    ("perplexity_within", "low"): {"high": 1000.0},
    ("mastered_token_mask", "entropy"): {"probability": 0.1},
    ("by_sign", "of"): {"positive": 2.0},
}
OTHERS |= {("mastered_token_mask", "probability"): {"entropy": 3.0}}
OTHERS |= {("exact_kl", "alpha"): {"divergence": "alpha"}, ("f_divergence", "alpha"): {"divergence": "alpha"}}
NUMBERS = (30.0, 1.0, 0.0, 0.01, -5.0, 3.0, 0.5)
SEAMS = ("prepare", *transforms.LOSS_SEAMS)
PIECES = [f"{seam}.{name}" for seam in SEAMS for name in transforms.pieces(seam)]


# --- the gradient of an on-policy batch --------------------------------------------------------


@functools.cache
def logits(seed):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(batch.B, batch.T, 3)), jnp.float32)


def scored(x, token, divergences=()):
    """Return the scores of a policy given by its logits, with divergences from the one of seed 1."""
    full, other = jax.nn.log_softmax(x), jax.nn.log_softmax(logits(1))
    names = {name: modules.parts(name)[0] for name in divergences}
    exact = {full_name: n for full_name, n in names.items() if ops.is_divergence(n)}
    divergence = {full_name: ops.divergence(n, full, other) for full_name, n in exact.items()}
    divergence |= {full_name: jax.nn.logsumexp(x, -1) for full_name, n in names.items() if n.startswith(modules.EVERY)}
    divergence |= {x: jnp.sum(jnp.exp(full) * logits(1), -1) for x, n in names.items() if n == modules.LEAST}
    logp = jnp.take_along_axis(full, token[..., None], -1)[..., 0]
    return types.Scores(
        logp=logp,
        entropy=-jnp.sum(jnp.exp(full) * full, -1),
        log_normaliser=jax.nn.logsumexp(x, axis=-1),
        divergence=divergence,
        value=x[..., 0],
        value_logits=x,
        reward=x[:, 0, 0],
        process=x[..., 0],
    )


def gradient(piece, policy):
    """Return the gradient in the logits of one step on rows that the policy has just sampled."""
    loss, x = problem(piece, policy)
    return jax.grad(lambda x: loss(x)[0])(x)


def problem(piece, policy):
    """Return a function from logits to (loss, metrics) of one step on rows that the policy has sampled, and its logits.

    The reference is the policy of seed 1: for ``policy`` 1 the policy itself.
    """
    rows, _ = batch.records(batch.arrays())
    x = logits(policy)
    live, reference = (scored(y, rows.action.token) for y in (x, logits(1)))
    rows = rows.replace(
        **{name: live.logp for name in ("proximal_logp", "behaviour_logp", "raw_logp")},
        ref_logp=reference.logp,
        value=live.value,
        returns=live.value + 1.0,
        reward=rows.reward * jnp.asarray([1.0, 0.6, 0.5] * 4),
        advantage=jnp.asarray([[1.0], [-1.0], [0.5]] * 4) * rows.mask,
        version=jnp.zeros_like(rows.token_reward if rows.token_reward is not None else rows.mask, jnp.int32),
        extra={**rows.extra, "now": jnp.zeros_like(rows.group), "preference": jnp.asarray([1.0, -1.0] * 6)}
        | {"margin": jnp.ones_like(rows.reward)},
    )
    if piece.needs.token_reward:
        rows = rows.replace(token_reward=rows.advantage)
    loss = {"prepare": (), "ratio": (piece, surrogate.unclipped())}.get(piece.seam, (ratio.token(), piece))
    if piece.seam in ("prepare", "weight", "penalty"):
        loss = (ratio.token(), surrogate.unclipped(), *(() if piece.seam == "prepare" else (piece,)))
    if piece.spec.startswith("centred_clip"):  # declared for a ratio to the sampler
        loss = (ratio.token("behaviour"), piece)
    prepare = (piece,) if piece.seam == "prepare" else ()
    o = types.Objective(loss=loss, reduce=reduce.mean_over_tokens(), prepare=prepare)
    state = interpreter.init(types.Algorithm(objectives=(o,)))["objectives"][0]
    rows, state = interpreter.prepare_minibatch(o, rows, live, state, KEY)
    return lambda x: interpreter.loss(o, rows, scored(x, rows.action.token, piece.needs.divergence), state, KEY), x


@pytest.mark.full
def test_every_metric_of_a_piece_is_in_the_glossary():
    for name in PIECES:
        loss, x = problem(built(name), 0)
        for metric in jax.eval_shape(loss, x)[1]:
            assert glossary.missing([metric]) == [] and not metric.startswith("own/"), (name, metric)
    loss, x = problem(pieces.tapered(), 0)
    assert "own/taper" in jax.eval_shape(loss, x)[1]


def built(name, **arguments):
    seam, name = name.split(".")
    required = batch.ARGUMENTS.get(name, "")
    return transforms.pieces(seam)[name](*(ast.literal_eval(f"({required},)") if required else ()), **arguments)


def declared(piece):
    """Return the arguments that a piece declares as idle, with their causes."""
    calls = [(ast.parse(call, mode="eval").body, causes) for call, *causes in piece.needs.idle if causes]
    return {k.arg: tuple(causes) for call, causes in calls for k in call.keywords}


def values(hint):
    """Return values of an argument to try."""
    if typing.get_origin(hint) is typing.Literal:
        return typing.get_args(hint)
    if typing.get_origin(hint) is tuple and all(a is float for a in typing.get_args(hint)):
        return ((0.5, 4.0), (3.0, 0.5))
    if hint is bool:
        return (False, True)
    fits = [n for n in NUMBERS if hints.mismatch(n, hint) is None]
    return fits or [n for n in map(int, NUMBERS) if hints.mismatch(n, hint) is None]


@pytest.mark.default_tier("surrogate.clip")
@pytest.mark.parametrize("name", PIECES)
def test_arguments_declared_idle_have_no_effect_on_policy_and_the_others_have_one(name):
    seam, short = name.split(".")
    function = transforms.pieces(seam)[short]
    annotations = typing.get_type_hints(inspect.unwrap(function), include_extras=True)
    fixed = {"kl": {"correction"}, "conservative": {"samples", "policy"}}.get(short, set())  # the sum here is exact
    for argument in [a for a in inspect.signature(function).parameters if a not in fixed]:
        if (
            argument in ("only", "reduce", "name", "predicate", "key", "weights", "levels", "cuts")
            or argument in ("teachers", "prompt", "top", "module", "base")
            or short in batch.ARGUMENTS
        ):
            continue
        others = OTHERS.get((short, argument), {})
        pieces = {v: built(name, **{argument: v}, **others) for v in values(annotations[argument])}
        idle = {v: p for v, p in pieces.items() if argument in declared(p)}
        policy = 1 if any("reference" in declared(p)[argument] for p in idle.values()) else 0
        base = gradient(built(name, **others), policy)
        for piece in [*idle.values()][:2]:
            np.testing.assert_allclose(gradient(piece, policy), base, rtol=1e-5, atol=1e-8, err_msg=piece.spec)
        if not idle:
            assert not all(np.allclose(gradient(p, policy), base, rtol=1e-4) for p in pieces.values()), argument
    if seam == "penalty":  # with a coefficient of 0 nothing is added
        none = built(name, coefficient=0.0)
        assert (f"{short}(coefficient=0.0)",) in none.needs.idle
        np.testing.assert_allclose(gradient(none, 0), gradient(transforms.weight.constant(), 0), rtol=1e-6)


# --- what a config says about it ---------------------------------------------------------------


def resolved(**fields):
    """Return the phases of the default config, its one phase named main, with dotted fields, __ for the dot."""
    config = rljax.default_config()
    for name, value in fields.items():
        files.override(config, name.replace("__", "."), value)
    return resolve.phases(config)


RATIO = "no effect: each rollout has one gradient step, so the ratio is 1"
WRITTEN = [
    ({"algorithm": "ppo_clip(low=0.001)"}, r"clip\(low=0.001, high=0.2\) has " + RATIO),
    ({"seam__surrogate": "clip(0.001, 0.001)"}, RATIO),
    ({"seam__surrogate": "where('positive', chain(token(), clip(0.1)), token(limit=3.0))"}, "have " + RATIO),
    (
        {"seam__ratio": "on_policy()", "algorithm": "grpo(low=0.1)", "learner__epochs": 4},
        "ratio.on_policy.. is always 1",
    ),
    ({"seam__penalty": "kl('k3', 0.0)"}, r"kl\(coefficient=0.0\) has no effect: its coefficient is 0"),
    ({"seam__penalty": "exact_kl(alpha=0.3)"}, "it is read only with divergence='alpha'"),
    ({"algorithm": "grpo(kl=0.5)", "seam__after": "reset_reference(1)"}, "before it the reference is the policy"),
    ({"algorithm": "grpo(kl=0.5)", "phase__main__steps": 1}, "before it the reference is the policy"),
    ({"seam__weight": "truncated_importance(3.0)"}, "importance weights are 1"),
    ({"seam__weight": "off_policy_sequence_mask()"}, "one gradient step, from the policy that sampled"),
    ({"seam__reward": "overlong(1000, 100)"}, "completions have at most 20 tokens, and it begins above 900 tokens"),
    ({"sampler__top_k": 1}, "all samples of a prompt are equal"),
    ({"sampler__rescore": "kept"}, "config.sampler.rescore='kept' has no effect"),
    ({"algorithm": "sft()", "sampler__rescore": "kept", "sampler__top_k": 5}, "no phase samples rows with a filter"),
    ({"verifier__workers": 4}, "config.verifier.workers=4 has no effect: the task is verified on the device"),
    ({"phase__main__verifier__chunks": 4}, "config.phase.main.verifier.chunks=4 has no effect"),
    ({"evaluation__samples": 3}, "config.evaluation.samples=3 has no effect: config.evaluation.every is 0"),
    ({"evaluation__final_prompts": 3}, "no phase names an evaluation"),
    ({"log__rollouts": 0, "log__rollout_rows": 3}, "config.log.rollouts is 0"),
    ({"phase__main__reference": "keep", "algorithm": "rloo()"}, "reads no reference"),
    ({"phase__main__reference": "keep", "algorithm": "grpo()"}, "reference='keep' has no effect: it is the first"),
    ({"phase__main__reset_optimizer": False}, "reset_optimizer=False has no effect: it is the first phase"),
]
ACTING = [
    {"algorithm": "ppo_clip(low=0.001)", "learner__epochs": 2},
    {"algorithm": "ppo_clip(low=0.001)", "learner__minibatches": 2},
    {"seam__ratio": "token('behaviour')", "sampler__top_p": 0.9, "algorithm": "grpo(low=0.1)"},
    {"seam__ratio": "token('reference')", "algorithm": "grpo(low=0.1)"},
    {"seam__surrogate": "clip(0.0, 0.0)"},  # bounds at the ratio itself halve the gradient
    {"seam__weight": "truncated_importance(3.0)", "seam__source": "replay()"},
    {"seam__weight": "truncated_importance(3.0)", "sampler__top_p": 0.9},
    {"seam__weight": "truncated_importance(3.0)", "model__dtype": "bfloat16"},
    {"seam__penalty": "kl('k1', 0.1)", "seam__after": "reset_reference(1)"},
    {"seam__penalty": "kl(coefficient=linear(0.0, 0.1, 10))"},
    {"algorithm": "grpo(kl=0.5)"},
    {"seam__reward": "overlong(18, 4)"},
    {"sampler__rescore": "kept", "sampler__top_p": 0.9},
    {"evaluation__samples": 3, "evaluation__every": 5},
    {"evaluation__final_samples": 3, "phase__main__evaluate": "end"},
]


@pytest.mark.parametrize(("fields", "message"), WRITTEN)
def test_what_a_user_sets_without_effect_is_a_warning(fields, message):
    (phase,) = resolved(**fields)
    assert len(phase.warnings) == 1 and re.search(message, phase.warnings[0]), phase.warnings


@pytest.mark.parametrize("fields", ACTING)
def test_what_acts_is_not_warned_about(fields):
    assert resolved(**fields)[0].warnings == ()


def test_every_filter_of_the_sampler_gives_rescore_an_effect(monkeypatch):
    monkeypatch.setitem(processors.FILTERS, "compact", processors.top_k)  # a field of the sampler as another filter
    assert {*processors.FILTERS} > {"top_k", "top_p", "min_p"}
    for name in processors.FILTERS:
        value = 0.5 if name.endswith("_p") else 2
        assert resolved(sampler__rescore="kept", **{f"sampler__{name}": value})[0].warnings == (), name


@pytest.mark.parametrize("name", ["grpo", "dapo", "tis", "ppo", "rloo", "sft"])
def test_a_recipe_with_its_defaults_has_no_warning_and_one_note_for_a_reason(name):
    (phase,) = resolved(algorithm=f"{name}()")
    reasons = [note.partition("no effect")[2] for note in phase.notes]
    assert phase.warnings == () and len(reasons) == len(set(reasons)) == {"tis": 2, "ppo": 2}.get(
        name, name in "grpo dapo"
    )
    assert resolved(algorithm=f"{name}()", learner__epochs=2)[0].warnings == ()


def test_a_phase_that_is_not_run_is_named():
    config = rljax.default_config()
    config.phase.extra = rljax.phase(steps=3)
    assert "config.phase.extra has no effect" in resolve.phases(config)[0].warnings[0]


@pytest.mark.parametrize("name", ["quickstart", "countdown", "ppo"])
@pytest.mark.parametrize("variant", ["", "quick"])
def test_shipped_configs_set_nothing_without_effect(name, variant):
    assert [p.warnings for p in resolve.phases(files.load(files.find(name), variant))] in ([(), ()], [(), (), ()])


def test_every_cause_that_a_piece_declares_has_words():
    for name in PIECES:
        for _, *until in built(name).needs.idle:
            assert tuple(until) in effects._REASONS or "=" in until[0], (name, until)
