"""Measure every KL piece of the library by enumeration, so that every number is exact.

    python experiments/kl_estimators/study.py

rewrites the tables between the markers of rljax/transforms/KL.md and draws kl.png in this folder. The measured pieces
are those of the library; the true values and gradients are computed in plain NumPy.
"""

import functools
import itertools
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import figure

from rljax import types
from rljax.transforms import advantage, ops, penalty, reduce, reward, surrogate

HERE = pathlib.Path(__file__).parent
PAGE = HERE.parents[1] / "rljax" / "transforms" / "KL.md"
LEVELS = (0.001, 0.1, 1.0)  # KL(pi || ref) of the tables, nats
GRID = tuple(10.0 ** np.arange(-3, 0.3, 0.25))  # KL(pi || ref) of the figure, nats
STALE = (0.01, 0.1)  # KL(pi || behaviour), nats
PAIRS, V = 32, 8
KEY = jax.random.key(0)

ESTIMATORS = {name: penalty.kl(name, 1.0) for name in ops.ESTIMATORS}
CORRECTED = {
    f'{name}, correction="{which}"': penalty.kl(name, 1.0, correction=which)
    for which in ("on_policy", "behaviour")
    for name in ("k1", "k3", "k2", "k3+")
}
EXACT = {
    **{n: penalty.exact_kl(n, 1.0) for n in ("reverse_kl", "forward_kl", "js", "hellinger", "total_variation")},
    **{f"alpha, alpha={a}": penalty.exact_kl("alpha", 1.0, a) for a in (0.5, 0.9)},
}
REHEARSED = {  # f_divergence, and the exact divergence that it estimates on tokens of the reference
    "`forward_kl`, that is `forward_kl`": (
        penalty.f_divergence("forward_kl", 1.0),
        penalty.exact_kl("forward_kl", 1.0),
    ),
    "`js`, that is twice `js`": (penalty.f_divergence("js", 1.0), penalty.exact_kl("js", 2.0)),
    "`alpha=0.2`, that is `alpha=0.8`": (penalty.f_divergence("alpha", 1.0, 0.2), penalty.exact_kl("alpha", 1.0, 0.8)),
}


# --- true values and gradients, in NumPy ---------------------------------------------------------


def log_softmax(x):
    """Return log-probabilities over the last dimension."""
    x = x - np.max(x, axis=-1, keepdims=True)
    return x - np.log(np.sum(np.exp(x), axis=-1, keepdims=True))


def reverse_kl(logp, ref):
    """Return KL(pi || ref) over the last dimension, and its gradient pi (d - KL) in the logits."""
    p, d = np.exp(logp), logp - ref
    value = np.sum(p * d, axis=-1)
    return value, p * (d - value[..., None])


def bisect(divergence, level):
    """Return the s >= 0 of each pair at which ``divergence(s)``, which increases in s, equals ``level``."""
    low = np.zeros_like(divergence(0.0))
    high = low + 64.0
    for _ in range(60):
        middle = (low + high) / 2
        above = divergence(middle) > level
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return (low + high) / 2


def shifted(logits, direction, level):
    """Return log ref, ref = softmax(logits + s direction), with the s at which KL(pi || ref) is ``level``."""

    def at(s):
        return log_softmax(logits + np.reshape(s, (-1, 1)) * direction)

    return at(bisect(lambda s: reverse_kl(log_softmax(logits), at(s))[0], level))


def pairs(levels):
    """Return (logits, log ref), each [levels, PAIRS, V]; policies and directions are the same at every level."""
    random = np.random.default_rng(0)
    logits, direction = random.normal(size=(2, PAIRS, V))
    return np.stack([logits] * len(levels)), np.stack([shifted(logits, direction, x) for x in levels])


# --- one state: each token of the vocabulary is one row of length 1 ------------------------------


def single_terms(piece, logits, ref, behaviour):
    """Return the piece's term of each token of the vocabulary, [V]."""
    logp = jax.nn.log_softmax(logits)
    one, none, group = jnp.ones((V, 1)), jnp.zeros(V), jnp.arange(V)
    rollout = types.Rollout(one, none, group, ref_logp=ref[:, None], behaviour_logp=behaviour[:, None])
    exact = {n: jnp.broadcast_to(ops.divergence(n, logp, ref), (V, 1)) for n in piece.needs.divergence}
    scores = types.Scores(logp=logp[:, None], divergence=exact)
    (term,) = piece.apply(types.Loss(), rollout, scores, piece.init(), KEY).terms.values()
    return term[:, 0]


def measured(pieces, logits, ref, behaviour):
    """Return {name: (terms [..., V], their gradients in the logits [..., V, V])} for arrays [..., V]."""

    def one(logits, ref, behaviour):
        run = {n: lambda x, p=p: single_terms(p, x, ref, behaviour) for n, p in pieces.items()}
        return {n: (f(logits), jax.jacrev(f)(logits)) for n, f in run.items()}

    results = jax.jit(jax.vmap(jax.vmap(one)))(logits, ref, behaviour)
    return {n: [np.asarray(x) for x in results[n]] for n in pieces}


length = functools.partial(np.linalg.norm, axis=-1)


def moments(weight, terms, gradients):
    """Return mean and std of the value, the mean gradient, and the noise of one sample's gradient, sqrt(tr cov)."""
    parameters = gradients.reshape(*terms.shape, -1)
    value = np.sum(weight * terms, axis=-1)
    spread = np.sqrt(np.sum(weight * (terms - value[..., None]) ** 2, axis=-1))
    mean = np.sum(weight[..., None] * parameters, axis=-2)
    square = np.sum((parameters - mean[..., None, :]) ** 2, axis=-1)
    return value, spread, mean, np.sqrt(np.sum(weight * square, axis=-1))


def error(estimate, truth):
    """Return |estimate - truth| / |truth| over the last dimension."""
    return length(estimate - truth) / length(truth)


def cosine(estimate, truth):
    """Return the cosine similarity over the last dimension; 0 where ``estimate`` is 0."""
    return np.sum(estimate * truth, axis=-1) / np.maximum(length(estimate) * length(truth), 1e-30)


@functools.cache
def one_state(levels):
    """Return {name: {quantity: [levels, PAIRS]}} of the penalties in the loss, on tokens that the policy sampled."""
    logits, ref = pairs(levels)
    logp = log_softmax(logits)
    true, reverse = reverse_kl(logp, ref)
    forward = np.exp(logp) - np.exp(ref)
    out = {}
    for name, samples in measured({**ESTIMATORS, **CORRECTED, **EXACT}, logits, ref, logp).items():
        value, spread, mean, noise = moments(np.exp(logp), *samples)
        out[name] = {
            "value": value / true,
            "bias": abs(value / true - 1),
            "spread": spread / true,
            "reverse": error(mean, reverse),
            "forward": error(mean, forward),
            "cosine_reverse": cosine(mean, reverse),
            "cosine_forward": cosine(mean, forward),
            "noise": noise / length(reverse),
            "fourfold": error(4 * mean, reverse),  # JS is a quarter of KL where both are small
        }
    return out


@functools.cache
def rehearsal(levels):
    """Return {name: {quantity: [levels, PAIRS]}} of ``f_divergence``, on tokens that the reference sampled."""
    logits, ref = pairs(levels)
    rehearsed, exact = (measured({n: x[i] for n, x in REHEARSED.items()}, logits, ref, ref) for i in (0, 1))
    out = {}
    for name in REHEARSED:
        true, gradient = exact[name][0][..., 0], exact[name][1][..., 0, :]
        value, _, mean, noise = moments(np.exp(ref), *rehearsed[name])
        size = length(gradient)
        out[name] = {"bias": abs(value / true - 1), "error": error(mean, gradient), "noise": noise / size}
    return out


@functools.cache
def off_policy(level, stale):
    """Return {name: {quantity: [stale, PAIRS]}} on tokens of behavior policies with KL(pi || behavior) = ``stale``."""
    logits, ref = pairs([level] * len(stale))
    direction = np.random.default_rng(1).normal(size=(PAIRS, V))
    behaviour = np.stack([shifted(logits[0], direction, x) for x in stale])
    true, reverse = reverse_kl(log_softmax(logits), ref)
    pieces = {n: p for n, p in {**ESTIMATORS, **CORRECTED}.items() if "on_policy" not in n and "abs" not in n}
    out = {}
    for name, samples in measured(pieces, logits, ref, behaviour).items():
        value, _, mean, noise = moments(np.exp(behaviour), *samples)
        out[name] = {"bias": abs(value / true - 1), "error": error(mean, reverse), "noise": noise / length(reverse)}
    return out


# --- sequences: 3 tokens, 3 steps, a state for every prefix --------------------------------------

ROWS = np.array(list(itertools.product(range(3), repeat=3)))  # all 27 sequences
STATES = np.stack([0 * ROWS[:, 0], 1 + ROWS[:, 0], 4 + 3 * ROWS[:, 0] + ROWS[:, 1]], axis=1)
FULL = np.ones((27, 3))
ENDED = np.cumprod(np.concatenate([np.ones((27, 1)), ROWS[:, :2] != 2], axis=1), axis=1)  # token 2 ends a row


def sequence_truth(logits, ref, mask):
    """Return the KL of sequences sum_y pi(y) D(y), its gradient sum_y pi(y) D(y) grad log pi(y), and pi(y)."""
    logp = log_softmax(logits)
    token_logp, ref_logp = logp[:, STATES, ROWS], ref[:, STATES, ROWS]
    probability = np.exp(np.sum(token_logp, axis=2))
    ratio = np.sum((token_logp - ref_logp) * mask, axis=2)
    score = np.zeros((27, *logits.shape))
    for y, t in itertools.product(range(27), range(3)):
        score[y, :, STATES[y, t]] += mask[y, t] * (np.eye(3)[ROWS[y, t]] - np.exp(logp[:, STATES[y, t]]))
    weight = (probability * ratio).T
    return np.sum(weight, axis=0), np.einsum("yn,ynsv->nsv", weight, score), probability


def sequences(levels, mask):
    """Return (logits, log ref), each [levels * PAIRS, 13, 3], with KL(pi || ref) of sequences equal to the level."""
    random = np.random.default_rng(2)
    logits, direction = random.normal(size=(2, PAIRS, 13, 3))

    def at(s):
        return log_softmax(logits + np.reshape(s, (-1, 1, 1)) * direction)

    refs = [at(bisect(lambda s: sequence_truth(logits, at(s), mask)[0], level)) for level in levels]
    return np.concatenate([logits] * len(levels)), np.concatenate(refs)


def records(logits, ref, mask, names=()):
    """Return the 27 rows as (Rollout, Scores); the scores are differentiable in ``logits``, [13, 3]."""
    logp = jax.nn.log_softmax(logits)
    token_logp, ref_logp = logp[STATES, ROWS], ref[STATES, ROWS]
    none, group = jnp.zeros(27), jnp.arange(27)
    rollout = types.Rollout(mask, none, group, raw_logp=jax.lax.stop_gradient(token_logp), ref_logp=ref_logp)
    return rollout, types.Scores(logp=token_logp, divergence={n: ops.divergence(n, logp, ref)[STATES] for n in names})


def in_loss(piece, reduction):
    """Return the function (logits, ref, mask) -> loss of each row, [27], with the penalty in the loss."""

    def rows(logits, ref, mask):
        rollout, scores = records(logits, ref, mask, piece.needs.divergence)
        (term,) = piece.apply(types.Loss(), rollout, scores, piece.init(), KEY).terms.values()
        reduced, _ = reduction.apply(rollout, None, reduction.init(), KEY)
        return 27 * jnp.sum(term * reduced.coefficient["common"], axis=1)

    return rows


def in_reward(piece, gamma=1.0):
    """Return that function for a reward or advantage piece, with REINFORCE on its advantage or reward-to-go."""

    def rows(logits, ref, mask):
        rollout, scores = records(logits, ref, mask)
        rollout, _ = piece.apply(rollout, piece.init(), KEY)
        returns, policy = ops.reward_to_go(ops.token_rewards(rollout), rollout.mask, gamma), surrogate.reinforce()
        rollout = rollout.replace(advantage=returns if rollout.advantage is None else rollout.advantage)
        (term,) = policy.apply(types.Loss(), rollout, scores, policy.init(), KEY).terms.values()
        return jnp.sum(term * rollout.mask, axis=1)

    return rows


SUM = reduce.mean_over_rows_of_sums()
PLACES = {f'reward, `kl("{k}")`': in_reward(reward.kl(k, 1.0)) for k in ("k1", "k2", "k3")}
PLACES['reward, `kl("k1")`, gamma 0'] = in_reward(reward.kl("k1", 1.0), 0.0)
PLACES['advantage, `charge_kl("k1")`'] = in_reward(advantage.charge_kl("k1", 1.0))
PLACES |= {f'loss, `kl("{k}")`': in_loss(penalty.kl(k, 1.0), SUM) for k in ("k1", "k2", "k3")}
PLACES['loss, `kl("k1", correction="on_policy")`'] = in_loss(penalty.kl("k1", 1.0, correction="on_policy"), SUM)
PLACES['loss, `exact_kl("reverse_kl")`'] = in_loss(penalty.exact_kl("reverse_kl", 1.0), SUM)
LENGTHS = {r.spec: in_loss(penalty.kl("k1", 1.0), r) for r in (SUM, reduce.mean_over_rows())}


@functools.cache
def over_rows(levels, ended=False):
    """Return {name: {quantity: [levels, PAIRS]}}: the expected gradients compared with that of the sequence KL."""
    functions, mask = (LENGTHS, ENDED) if ended else (PLACES, FULL)
    logits, ref = sequences(levels, mask)
    _, gradient, probability = sequence_truth(logits, ref, mask)
    truth = gradient.reshape(len(logits), -1)

    def one(logits, ref):
        return {n: jax.jacrev(lambda x, f=f: f(x, ref, mask))(logits) for n, f in functions.items()}

    gradients, out = jax.jit(jax.vmap(one))(logits, ref), {}
    for name in functions:
        _, _, mean, noise = moments(probability, np.zeros(probability.shape), np.asarray(gradients[name]))
        quantities = {"error": error(mean, truth), "size": length(mean) / length(truth), "noise": noise / length(truth)}
        out[name] = {q: x.reshape(len(levels), PAIRS) for q, x in quantities.items()}
    return out


# --- the page -----------------------------------------------------------------------------------


def number(x):
    """Return ``x`` with three significant digits; an integer up to rounding errors is written as an integer."""
    nearest = round(float(x))
    return str(nearest) if abs(x - nearest) < 1e-8 else f"{x:.3g}"


def table(first, results, levels, columns):
    """Return a Markdown table: a row per name, a column per quantity and level with the median over pairs."""
    heads = [first, *(f"{title}, {x:g}" if i == 0 else f"{x:g}" for title in columns for i, x in enumerate(levels))]
    lines = [heads, ["---"] * len(heads)]
    for name, quantities in results.items():
        cells = np.concatenate([np.median(quantities[q], axis=-1) for q in columns.values()])
        lines.append([name if "`" in name else f"`{name}`", *(number(x) for x in cells)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tables():
    """Return {marker: Markdown} of all measurements."""
    with jax.enable_x64(True):
        single, stored, stale = one_state(LEVELS), rehearsal(LEVELS), off_policy(0.1, STALE)
        along, ended = over_rows(LEVELS), over_rows(LEVELS, ended=True)
    sampled = {n: single[n] for n in (*ESTIMATORS, *(n for n in CORRECTED if "on_policy" in n))}
    exact = {n: single[n] for n in EXACT}
    sums, means = (", ".join(number(x) for x in np.median(ended[n]["size"], axis=-1)) for n in LENGTHS)
    both = {"error to reverse": "reverse", "error to forward": "forward", "noise": "noise"}
    cosines = {"cosine to reverse": "cosine_reverse", "cosine to forward": "cosine_forward"}
    noise = {"error": "error", "noise": "noise"}
    return {
        "values": table("`kl`", sampled, LEVELS, {"bias / KL": "bias", "std / KL": "spread"}),
        "gradients": table("`kl`", sampled, LEVELS, both),
        "exact": table("`exact_kl`", exact, LEVELS, {"value / KL": "value", **cosines}),
        "sequences": table("where", along, LEVELS, noise),
        "lengths": f"Under a sum of tokens: {sums}. Under `mean_over_rows()`: {means}.",
        "off_policy": table("`kl`", stale, STALE, {"bias / KL": "bias", **noise}),
        "rehearsal": table("`f_divergence`", stored, LEVELS, {"bias": "bias", **noise}),
    }


def rewrite(page, texts):
    """Return ``page`` with the text between the markers of each name replaced."""
    for name, text in texts.items():
        marks = f"<!-- measured: {name} -->", "<!-- end -->"
        pattern = re.compile(f"{re.escape(marks[0])}.*?{marks[1]}", re.DOTALL)
        page, count = pattern.subn(lambda _, m=marks, t=text: f"{m[0]}\n{t}\n{m[1]}", page)
        if count != 1:
            raise ValueError(f"{PAGE.name}: the marker {marks[0]!r} occurs {count} times; it must occur once")
    return page


# --- the figure ---------------------------------------------------------------------------------

COLORS = {"k1": "#0072B2", "k2": "#D55E00", "k3": "#009E73", "abs": "#CC79A7", "k1 corrected": "#56B4E9"}
COLORS |= {"forward_kl": "#000000", "js": "#E69F00"}


def draw(results, path):
    """Draw bias, std, gradient error and gradient noise against the true KL: medians, with bands for quartiles."""
    canvas = figure.Figure(figsize=(12, 8), dpi=100, layout="constrained")
    (bias, spread), (wrong, noise) = canvas.subplots(2, 2, sharex=True)

    def line(ax, name, label, x, dashes="-"):
        low, middle, high = np.quantile(x, (0.25, 0.5, 0.75), axis=1)
        ax.fill_between(GRID, low, high, color=COLORS[name], alpha=0.15, linewidth=0)
        ax.plot(GRID, middle, color=COLORS[name], label=label, linestyle=dashes, linewidth=2)

    for name in ("abs", "k2"):
        line(bias, name, name, results[name]["bias"])
    line(bias, "forward_kl", "exact forward KL", results["forward_kl"]["bias"], "--")
    line(bias, "js", "4 x exact JS", abs(4 * results["js"]["value"] - 1), "--")
    for name, label in (("k1", "k1, k1+"), ("abs", "abs"), ("k2", "k2"), ("k3", "k3, k3+")):
        line(spread, name, label, results[name]["spread"])
    line(wrong, "abs", "abs", results["abs"]["reverse"])
    line(wrong, "k1", "k1: zero expected gradient", results["k1"]["reverse"])
    line(wrong, "k3", "k3 = exact forward KL", results["k3"]["reverse"])
    line(wrong, "js", "4 x exact JS", results["js"]["fourfold"], "--")
    line(noise, "k1 corrected", "k1 corrected", results['k1, correction="on_policy"']["noise"])
    line(noise, "k1", "k1: zero expected gradient", results["k1"]["noise"], ":")
    line(noise, "abs", "abs", results["abs"]["noise"])
    line(noise, "k2", "k2, k1+, k3+, k3 corrected", results["k2"]["noise"])
    line(noise, "k3", "k3", results["k3"]["noise"])
    exact = "zero: k2, k1+, k3+, k1 and k3 corrected"
    titles = (
        (bias, "Value: relative bias", "|mean - KL| / KL", "zero: k1, k3, k1+, k3+"),
        (spread, "Value: std of one token", "std / KL", "zero: every exact divergence"),
        (wrong, "Gradient in the loss: error to that of reverse KL", "|mean - true| / |true|", exact),
        (noise, "Gradient in the loss: noise of one token", "sqrt(tr cov) / |true|", "zero: every exact divergence"),
    )
    for ax, title, unit, note in titles:
        ax.set(xscale="log", yscale="log", ylabel=unit, ylim=(None, 200))
        ax.set_title(title, loc="left", fontsize=12, fontweight="bold")
        ax.grid(color="#DDDDDD", linewidth=0.7)
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(loc="upper right", frameon=False, fontsize=9, title=note, title_fontsize=9, alignment="left")
    canvas.supxlabel(f"true KL(policy || reference), nats; medians and quartiles over {PAIRS} pairs", fontsize=10)
    canvas.savefig(path)


def main():
    """Rewrite the tables of the page and draw the figure."""
    PAGE.write_text(rewrite(PAGE.read_text(), tables()))
    with jax.enable_x64(True):
        results = one_state(GRID)
    draw(results, HERE / "kl.png")


if __name__ == "__main__":
    main()
