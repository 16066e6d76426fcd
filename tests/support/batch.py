"""The batch that every recipe is tested on, by the recipe's name."""

from rljax.algorithms.battery import batch

B, T, SEGMENTS = batch.B, batch.T, batch.SEGMENTS
records, select = batch.records, batch.select

# recipes that are paid at tokens; the others have no token rewards
PAID_AT_TOKENS = (
    *("clip_delta", "turn_ppo", "diffusion_ppo", "digirl", "webrl", "gated_reward", "archer"),
    *("process_reward_model", "math_shepherd"),
    *("mars", "score", "score_initial", "ui_s1", "rlvmr", "istar", "tango", "process_grpo"),
)

# recipes whose rows have the reward of their episode
PAID_BY_ROLLOUT = ("delethink", "mem_searcher", "supo", "webagent_r1", "agent_lightning", "mgpo")


def kind(name):
    """Tell which batch a recipe is tested on: recipes of one kind have equal arrays."""
    return name in PAID_AT_TOKENS, name in PAID_BY_ROLLOUT


# by name, what a config must write for pieces with arguments that have no default
ARGUMENTS = {
    "attended": "';'",
    "easiest": "0.5",
    "gaussian": "0.5",
    "mixed": "(0.5, 0.5)",
    "stored": "'rows.jsonl'",
    "recorded": "'steps.npz'",
    "arriving": "'rows'",
    "ordered": "0.5",
    "answered": "'0'",
    "brevity_if_solved": "6.0",
    "budget_triangle": "4.0",
    "by_part": "'rate'",
    "by_role": "(0.2, 1.0)",
    "by_domain": "(0.2, 1.0)",
    "ladder": "2",
    "ranked": "0.5",
    "charge": "'iou', 0.5",
    "clamp": "1.0",
    "multiplier": "'reward', 0.5",
    "clip_process": "0.1",
    "collective_vote": "2",
    "convex": "returns(), center_steps(), 0.5",
    "cosine_length": "6",
    "decoupled": "(('format', 1.0), ('iou', 0.5))",
    "drop_between": "(0,), (1,)",
    "exponential_distance": "'iou', 1.0",
    "gated": "1.0",
    "given": "'token_score'",
    "in_domains": "(1,), affine(2.0)",
    "keep": "'correct'",
    "mean_over_tokens_by": "'correct'",
    "mix": "returns(), center_steps()",
    "mix_part": "'iou', 0.5",
    "only_turn": "1",
    "overlong": "8, 2",
    "part_baseline": "'iou'",
    "partition_target": "15.0",
    "pass_at_k": "2",
    "probed": "('0',)",
    "quadratic": "0.5",
    "require": "'format'",
    "rethink": "('0',)",
    "role_baseline": "2",
    "scaffold": "100",
    "self_judged": "('0', '1')",
    "templates": "('',)",
    "conditioned": "('0', '1')",
    "value_histogram": "(-0.5, 1.5), 3",
    "value_tracker": "16",
    "zscore_by_prompt": "16",
}


def arrays(seed=0, name=""):
    """Return the batch of ``battery.batch`` for a recipe."""
    return batch.arrays(seed, name in PAID_AT_TOKENS, name in PAID_BY_ROLLOUT)
