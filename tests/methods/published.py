"""Published methods whose rows come from a source: the settings of each, and a run of their real steps.

    python -m tests.methods.published [NAME ...]

Every method takes steps of its compiled program on a tiny policy until its source has acted and the policy has had a
gradient, two steps at least; a line says after how many. The tests resolve every method and run its pieces on abstract
arrays, as a run does before it starts.
"""

import functools
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from rljax.run import programs
from tests.support import tiny

DOMAINS = "arithmetic(digits=(1, 2), working=False, noise=0.3)"
GRPO = "grpo(kl=0.0)"
METHODS = {  # recipe, source, other settings by dotted path
    # --- which prompts are drawn ---
    "MoPPS": (GRPO, "mopps()", {}),
    "VADE": (GRPO, "vade()", {}),
    "Kimi k1.5": (GRPO, "by_failure()", {}),
    "SPO": (GRPO, "by_deviation()", {}),
    "learnability": (GRPO, "learnability()", {}),
    "QwenLong-L1": (GRPO, "hard_replay()", {}),
    "LIMR": (GRPO, "lim()", {}),
    "SwS": (GRPO, "weak()", {}),
    "eva": (GRPO, "regret()", {}),
    "PLR, regret": (GRPO, "prioritized('regret')", {}),
    "PLR": (GRPO, "prioritized()", {}),
    "online difficulty filtering": (GRPO, "band(0.25, 0.75)", {}),
    "Pre-GRPO": (GRPO, "band(low=0.0, high=piecewise(((0, 1.0), (400, 0.3))))", {}),
    "pivot filtering": (GRPO, "band(low=0.05, high=0.6, forget=1.0, settle=8)", {}),
    "ScaleRL": (GRPO, "retire()", {}),
    "SEC": (GRPO, "sec()", {"task": DOMAINS}),
    "DUMP": (GRPO, "dump()", {"task": DOMAINS}),
    "ALP": (GRPO, "alp()", {"task": DOMAINS}),
    "RuleReasoner": (GRPO, "shortfall()", {"task": DOMAINS}),
    "MoDoMoDo": (GRPO, "mixed((1.0, linear(0.0, 3.0, 100)))", {"task": DOMAINS}),
    "E2H": (GRPO, "ordered(linear(0.0, 1.0, 100))", {"task": DOMAINS}),
    "E2H, Gaussian": (GRPO, "gaussian(linear(0.0, 1.0, 100))", {"task": DOMAINS}),
    "CCL": (GRPO, "easiest(oscillating(0.25, 1.0))", {"task": DOMAINS}),
    "GAIN-RL": (GRPO, "ranked(adaptive_difficulty())", {}),
    "ADCL": (GRPO, "adcl()", {}),
    "MathBook-RL": (GRPO, "ladder(3)", {}),
    "constant weights by domain": (GRPO, "task()", {"task": DOMAINS, "seam.weight": "+ by_domain((1.0, 0.3))"}),
    "constant rewards by domain": (GRPO, "task()", {"task": DOMAINS, "seam.reward": "+ by_domain((1.0, 0.1))"}),
    "TMN-Reweight": ("golongrl()", "task()", {"task": DOMAINS}),
    "RLCS": (GRPO, "mopps() | dynamic(2)", {}),
    # --- how many samples, and which are kept ---
    "Knapsack-GRPO": (GRPO, "knapsack()", {}),
    "Reinforce-Ada, by 1/p": (GRPO, "inverse_success()", {}),
    "Reinforce-Ada": ("reinforce_ada()", "rounds(keep=2)", {}),
    "CodeV-R1": ("dapo()", "adaptive()", {}),
    "balanced filtering": (GRPO, "balanced()", {}),
    "SSR, selective replay": (GRPO, "selective_replay()", {}),
    "PTS": (GRPO, "pairs()", {}),
    "RoRecomp": (GRPO, "recompose()", {}),
    "SPIN": ("spin()", "", {"learner.epochs": 2}),
    "OREAL": (
        "oreal(module='token_reward')",
        "one_of_each(2)",
        {"seam.weight": "+ constant(piecewise(((0, 0.0), (1, 1.0))))"},
    ),
    "APRIL": (GRPO, "april(oversample=2)", {}),
    "T-PPO": ("t_ppo(window=2)", "", {}),
    # --- second passes ---
    "GHPO": (GRPO, "ghpo()", {}),
    "Guide-GRPO": ("guide_grpo(quantile=0.9)", "", {}),
    "Guide-PPO": ("ppo(kl=0.0)", "guide()", {"seam.ratio": "shaped(1.0, 'behaviour')"}),
    "CURE": ("dapo()", "+ cure(0.25, 3)", {}),
    "EGSR": ("luffy(demonstrations=1)", "expert_rewrite(prompts=1.0)", {"batch.prompts": 64}),
    "RuscaRL": (GRPO, "scaffold(100)", {}),
    "ExP-GRPO": ("exp_grpo()", "", {}),
    "ExP-DPO": ("dpo()", "explained()", {}),
    "Critique-GRPO": ("critique_grpo()", "", {}),
    "Cog-Rethinker": ("cog_rethinker()", "", {}),
    "Agent-RLVR": ("dpo()", "refine(wrong='0', solution=0.5)", {}),
    "AnytimeReasoner": (
        "brpo_budget(budgets='linear')",
        "anytime(cuts=2, summaries=2, room=1, train_summary=True)",
        {},
    ),
    "SSR-Zero": (GRPO, "self_judged(('0', '1'))", {}),
    "Forced Rethinking": ("exp_grpo()", "rethink(('0',), room=2)", {"seam.penalty": "+ hint_nll(0.1)"}),
    "QuestA": (GRPO, "hinted(linear(0.5, 0.0, 100))", {}),
    "MEML, templates": (GRPO, "templates(('', '0'))", {}),
    "HIL-SERL": (GRPO, "intervene(1)", {}),
    "VeriFree": ("verifree()", "answered(';')", {"task": "arithmetic(operands=2, digits=1)"}),
    "REX-RAG": ("rex_rag()", "probed(('0', '1'), room=2)", {}),
    # --- prefixes ---
    "QWeb": (GRPO, "prefixed(linear(0.8, 0.0, 40))", {}),
    "SnapshotRL": (GRPO, "prefixed_between(0.0, linear(1.0, 0.0, 40))", {}),
    "PPO++ of RLGF": ("ppo(kl=0.0)", "prefixed_between(0.0, 1.0, chance=0.5)", {}),
    "UFT": (GRPO, "prefixed_binomial(0.5)", {"seam.penalty": "+ hint_nll(0.1)"}),
    "R3": (GRPO, "backward()", {}),
    "BREAD": (GRPO, "bread()", {}),
    "QwenLong, retry": (GRPO, "retry_from_middle()", {}),
    # --- memories ---
    "ARPO": (GRPO, "arpo()", {}),
    "RLEP": (GRPO, "rlep()", {}),
    "ExGRPO": (GRPO, "exgrpo()", {}),
    "EasyVideoR1": (GRPO, "guided_if(0.5)", {}),
    "guided below": (GRPO, "guided_below(0.5)", {}),
    "SERL, replay": ("aipo()", "replay(0.5, 4)", {}),
    "ReMix": ("remix()", "", {}),
    "ReLIFT": ("relift()", "", {"seam.reward": "outcome(1.0, 0.0, -1.0)"}),
    "DPH-RL": ("dph_rl()", "", {}),
    "Uni-o4": (
        GRPO,
        "task()",
        {"seam.ratio": "token('reference')", "seam.after": "reset_reference_if_better(10)"},
    ),
    # --- pieces of losses ---
    "PRDP": ("dpo()", "", {"seam.prepare": "random_pair()", "seam.surrogate": "reward_difference(proximal=0.2)"}),
    "entropy clip": ("dapo()", "task()", {"seam.surrogate": "entropy_clip()"}),
    "TEA-RL": ("dapo()", "task()", {"seam.penalty": "covariant_entropy()"}),
    "ConciseR": ("dapo()", "task()", {"seam.penalty": "entropy()", "seam.reward": "brevity_if_solved(8)"}),
    "Self-Search": (GRPO, "task()", {"seam.prepare": "drop_between((3,), (4,))"}),
    "Rubicon": (GRPO, "task()", {"seam.reward": "add_parts((('format', 0.5),), full=1.0) | require('format')"}),
    "AMFT, entropy term": (
        "exp_grpo(beta=adaptive_mixture(1.0))",
        "guided(1)",
        {"seam.weight": "constant(adaptive_mixture(1.0, step=-5e-4))"},
    ),
}


SHOWN = ("steps", "fired", "reward", "valid_rows", "gradient_norm")


def config(name):
    """Return the config of a method, on one device."""
    algorithm, source, fields = METHODS[name]
    fields = {"seam.source": source, **fields} if source else fields
    return tiny.config(algorithm, mesh__data=1, **{field.replace(".", "__"): x for field, x in fields.items()})


def program(name):
    """Return the program of a method."""
    return programs.build(config(name), devices=jax.devices()[:1])


@functools.cache
def policy(task):
    """Return the parameters of a policy that solves a part of a task, so that groups have right and wrong rows."""
    cloned = tiny.program("sft()", task=task, batch__prompts=64, phase__main__warmup=10, phase__main__steps=150)
    (step,) = cloned.steps
    state = step.begin(None, cloned.key)
    for _ in range(150):
        state, _ = step.fused(state, cloned.key)
    return jax.device_get(state.params["policy"])


def run(name, least=2, most=40):
    """Take steps of the compiled program of a method until it has acted, and return the last metrics.

    Args:
      name: a key of ``METHODS``.
      least: steps at least.
      most: steps at most.

    Returns:
      Metrics of the last step by name; "steps", how many were taken; "fired", the largest of all steps.

    Raises:
      AssertionError: a skipped update, a metric that is not finite, a source that did not act, or no gradient.
    """
    built = program(name)
    (step,) = built.steps
    start = policy(METHODS[name][2].get("task", tiny.config().task))
    state = step.begin(None, built.key, {"policy": jax.tree.map(jnp.asarray, start)})
    assert step.fused is not None
    acted, moved = 0.0, 0.0
    for taken in range(1, most + 1):
        state, metrics = step.fused(state, built.key)
        assert int(state.skipped_total) == 0
        values = {k: float(v) for k, v in jax.device_get(metrics).items() if k != "rows"}
        assert all(np.isfinite(x) for x in values.values()), values
        acted, moved = max(acted, values.get("fired", 1.0)), max(moved, values["gradient_norm"])
        if taken >= least and acted > 0 and moved > 0:
            return values | {"steps": taken} | ({"fired": acted} if "fired" in values else {})
    raise AssertionError(f"in {most} steps: fired at most {acted:.3g}, gradient norm at most {moved:.3g}")


def main(names):
    """Run the methods, all by default, and print a line for each."""
    failed = 0
    for name in names or METHODS:
        start = time.process_time()
        try:
            metrics = run(name)
            said = ", ".join(f"{k} {metrics[k]:.4g}" for k in SHOWN if k in metrics)
        except Exception as error:  # each method is reported
            said, failed = f"FAILED {type(error).__name__}: {error!s:.300}", failed + 1
        print(f"{name}: {said} ({time.process_time() - start:.0f} s)", flush=True)
        jax.clear_caches()
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
