"""rljax beside five public systems: what their own functions gave on one batch, and what is written here to get it.

Each case of support/reference/peers.json names a config string under "rljax", or a recipe and what ``config.seam``
puts in its place, that must give the same values and gradients; "times" is the factor by which they rightly differ,
"relation" a function below that says how they do, "why" the reason. algorithms/DIFFERENCES.md has the settings.
"""

import collections
import dataclasses
import json
import pathlib

import jax
import numpy as np
import pytest

import rljax
from rljax import transforms, types
from rljax.algorithms import interpreter, like, seams

PEERS = json.loads((pathlib.Path(__file__).parent.parent / "support" / "reference" / "peers.json").read_text())
CASES = PEERS["cases"]
A = {name: np.asarray(x, float) for name, x in PEERS["arrays"].items()}
TOKENS = A["mask"] > 0
FIELDS = {n: n for n in ("mask", "reward", "group", "advantage", "entropy", "value", "returns", "square_prob")}
FIELDS |= {"proximal_logp": "proximal", "behaviour_logp": "behaviour_wide", "raw_logp": "proximal", "ref_logp": "ref"}
PARTS = {"greedy_reward": A["greedy_reward"], "first": A["reward"], "second": A["reward_second"]}
KINDS = ("loss", "kl", "aggregate", "value_loss", "weight", "mask", "advantage")

# cases of one kind that share algorithm and inputs are computed once
GROUPS = collections.defaultdict(list)
for _name, _case in CASES.items():
    GROUPS[_name.split("/")[1], json.dumps(_case["rljax"]), json.dumps(_case.get("inputs", {}))].append(_name)


def algorithm(text):
    """Build a config string, or a recipe and fields of ``config.seam``."""
    if isinstance(text, str):
        return seams.algorithm(text, "algorithm")
    fields = dict.fromkeys(transforms.SEAMS, "") | text
    return seams.edited(seams.algorithm(fields.pop("algorithm"), "algorithm"), fields)


def records(inputs):
    names = {**FIELDS, **inputs}
    if names["proximal_logp"] is None:  # on-policy: the ratio must not fall back on the sampler
        names["behaviour_logp"] = None
    fields = {field: None if name is None else A[name] for field, name in names.items()}
    return rljax.rollout_from_arrays(**fields, parts=PARTS)


def ours(kind, text, inputs):
    """Return what rljax gives: names as in the fixture, values of the 31 tokens."""
    built, rows = algorithm(text), records(inputs)
    if kind == "advantage":
        rows, _ = interpreter.transform(built, rows, interpreter.init(built), jax.random.key(0))
        return {"advantage": np.asarray(rows.advantage)[TOKENS]}
    if kind in ("weight", "mask"):  # with A = -1 and a sum over tokens, a gradient is a weight
        rows = rows.replace(advantage=-rows.mask)
    start = {"aggregate": A["advantage_token"] + A["logp"], "value_loss": A["value_new"]}.get(kind, A["logp"])

    def objective(x):
        policy = types.Scores(logp=-x if kind == "aggregate" else x, entropy=A["entropy"])
        scores = types.Scores(value=x) if kind == "value_loss" else policy
        return rljax.objective(dataclasses.replace(built, transforms=()), rows, scores)[0]

    value, gradient = jax.value_and_grad(objective)(start)
    gradient = np.asarray(gradient)[TOKENS]
    return {kind: gradient} if kind in ("weight", "mask") else {"value": float(value), "gradient": gradient}


def first(case, got):
    """A row's first token is paid all the row's divergence."""
    rows = np.argmax(TOKENS, axis=1)
    out = np.zeros(TOKENS.shape)
    out[TOKENS] = got["advantage"]
    return {"advantage": np.broadcast_to(out[np.arange(len(rows)), rows][:, None], out.shape)[TOKENS]}


def tail(case, got):
    """The last two tokens of row 0, the longest of its group, have no other row beside them."""
    return {"advantage": np.where(np.arange(TOKENS.sum()) == 5, 0.0, got["advantage"])}


def lone(case, got):
    """Here a lone row gets 0, there its reward, which verl's grpo divides by 1 + epsilon."""
    assert not got["advantage"].any()
    scale = 1.0 if case["rljax"] == "rloo()" else 1.0 + 1e-6
    return {"advantage": np.broadcast_to(A["reward"][:, None] / scale, TOKENS.shape)[TOKENS]}


def gmpo(case, got):
    """Each row's gradient has a factor of its own."""
    log = np.minimum(A["proximal"] - A["behaviour_wide"], np.log(2.0))
    row = np.sum(log * TOKENS, axis=1) / np.sum(TOKENS, axis=1)
    return {"gradient": got["gradient"] * np.repeat(np.exp(row), TOKENS.sum(axis=1))}


def clamp(case, got):
    """Beyond the bound the divergence has no gradient; what is left is that of the rest of the loss."""
    bound, text = (10.0, None) if case["rljax"] != "grpo(like='tunix', estimator='k3')" else (0.5, "grpo(kl=0.0)")
    d = A["logp"] - A[case["inputs"]["ref_logp"]]
    rest = 0.0 if text is None else ours("loss", text, case["inputs"])["gradient"]
    return {"gradient": np.where((np.expm1(-d) + d)[TOKENS] <= bound, got["gradient"], rest)}


def gradient(case, got):
    """Only gradients are the same."""
    return {"gradient": got["gradient"]}


def exchanged(case, got):
    """Reject by the divergence from the sampler to the proximal policy, not from the proximal policy to it."""
    everything, rule = case["rljax"]["weight"].split(" | ")
    roles = {"proximal_logp": "behaviour_wide", "behaviour_logp": "proximal"}
    kept = ours("weight", {"algorithm": "reinforce()", "weight": rule, "reduce": "sum_over_tokens()"}, roles)["weight"]
    return {"gradient": ours("loss", {**case["rljax"], "weight": everything}, {})["gradient"] * kept}


RELATIONS = {f.__name__: f for f in (first, tail, lone, gmpo, clamp, gradient, exchanged)}


@pytest.mark.default_tier(
    "verl/loss/vanilla",
    "trl/loss/dapo",
    "openrlhf/loss/ppo",
    "areal/loss/ppo",
    "tunix/loss/grpo",
    "verl/mask/token_k1_wide",
    "verl/kl/k1",
    "verl/value_loss/clip_0.5",
    "verl/advantage/grpo",
    "verl/advantage/rloo",
)
@pytest.mark.parametrize(("kind", "text", "inputs"), list(GROUPS), ids=[names[0] for names in GROUPS.values()])
def test_equals_what_the_systems_gave(kind, text, inputs):
    with jax.enable_x64(True):
        got = ours(kind, json.loads(text), json.loads(inputs))
        for name in GROUPS[kind, text, inputs]:
            case = CASES[name]
            expected = RELATIONS[case["relation"]](case, got) if "relation" in case else got
            assert expected
            for key, x in expected.items():
                y = np.array([*map(float, case[key])]) if key == "mask" else np.asarray(case[key])
                np.testing.assert_allclose(x * case.get("times", 1.0), y, rtol=1e-6, atol=1e-6, err_msg=name)


def test_what_differs_says_why_and_no_case_is_vacuous():
    for name, case in CASES.items():
        assert "why" in case or not {"times", "relation"} & {*case}, name
        assert np.any(np.asarray([*case.get("mask", [1])], float)), name
    systems = collections.Counter(name.split("/")[0] for name in CASES)
    assert systems.keys() == {"verl", "trl", "openrlhf", "tunix", "areal"} and min(systems.values()) >= 20


@pytest.mark.default_tier(5)
@pytest.mark.parametrize(("recipe", "system"), [(r, s) for r, of in like.LIKE.items() for s in of])
def test_a_preset_is_a_call_of_its_recipe(recipe, system):
    built = algorithm(f"{recipe}(like={system!r})")
    assert algorithm(built.spec).spec == built.spec
