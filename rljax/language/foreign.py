"""Names in other libraries, with the corresponding names in rljax, for the error messages of ``parse.nearest``."""

_PROXIMAL = "proximal_logp (the policy at the start of the update) or behaviour_logp (at sampling)"
_BEHAVIOUR = "behaviour_logp (what the sampler assigned to the token)"
_LOGP = "logp of rljax.Scores (the current policy)"
_REFERENCE = "ref_logp (the reference policy)"
_MASK = "mask, [B, T], 1 on tokens the policy emitted"
_TOKENS = "token, the completions' ids [B, T]"
_WEIGHT = "weight.given('name'), with the array in the rollout's extra['name']"
_CAP = "the argument cap of weight.truncated_importance, or of the recipe"
_REDUCE = (
    "the seam reduce: mean_over_tokens ('token-mean'), mean_over_rows ('seq-mean-token-mean'), "
    "mean_over_rows_of_sums ('seq-mean-token-sum'), fixed_length ('seq-mean-token-sum-norm')"
)
_KL = "the recipe's argument kl, or the coefficient of penalty.kl in the seam penalty"
_REWARD_KL = "the coefficient of reward.kl in the seam reward"
_ESTIMATOR = "the argument estimator: 'k1', 'k2', 'k3', 'abs', 'k1+' or 'k3+'"
_ENTROPY = "the recipe's argument entropy, or the coefficient of penalty.entropy in the seam penalty"
_BOTH = "low and high, the distances of the clip's bounds from 1"

_CLIP = "surrogate.clip: the recipe's arguments low and high"
_LENGTH = "completion_length, in the call of config.task"
_STEPS = "config.phase.NAME.steps"
_SAMPLES = "samples of a prompt: config.batch.samples"

FOREIGN: dict[str, str] = {
    # arrays
    **dict.fromkeys(("old_log_prob", "old_log_probs", "old_" + "logprobs", "old_per_token_logps"), _PROXIMAL),
    **dict.fromkeys(("rollout_log_probs", "rollout_log_prob", "sampling_per_token_logps"), _BEHAVIOUR),
    **dict.fromkeys(("generation_logprobs", "vllm_logprobs", "inference_logprobs"), _BEHAVIOUR),
    **dict.fromkeys(("log_prob", "log_probs", "logprobs", "per_token_logps", "current_logprobs"), _LOGP),
    **dict.fromkeys(("ref_log_prob", "ref_log_probs", "ref_per_token_logps", "reference_log_probs"), _REFERENCE),
    **dict.fromkeys(("response_mask", "completion_mask", "loss_mask", "action_mask"), _MASK),
    **dict.fromkeys(("responses", "response_ids", "completion_ids", "action_ids", "input_ids"), _TOKENS),
    **dict.fromkeys(("token_level_rewards", "token_level_scores"), "token_reward, or reward for a number of the row"),
    **dict.fromkeys(("rewards", "scores", "rm_scores", "seq_reward"), "reward, [B]"),
    "advantages": "advantage, [B, T], which rljax.objective uses as it is",
    "values": "value, the critic's estimates [B, T]",
    **dict.fromkeys(("uid", "group_id", "group_ids", "prompt_id", "prompt_ids"), "group, [B] ids"),
    **dict.fromkeys(("is_weights", "rollout_is_weights", "importance_weights"), _WEIGHT),
    # losses and estimators
    **dict.fromkeys(("loss_agg_mode", "loss_aggregation", "aggregation", "loss_type"), _REDUCE),
    "dro": "the recipe direct_reward_optimisation",
    "geo_mean": "the recipe gmpo, or surrogate.geometric_mean",
    "grpo_passk": "the recipe best_minus_second; pass_at_k is the method of Pass@k Training",
    "adv_estimator": "the seam advantage, or config.algorithm, which names the recipe",
    "vanilla": _CLIP,
    # arguments
    **dict.fromkeys(("cliprange", "clip_range", "clip_ratio", "clip_eps", "eps_clip", "epsilon"), _BOTH),
    **dict.fromkeys(("kl_coef", "kl_loss_coef", "beta", "kl_coeff", "init_kl_coef"), _KL),
    "kl_reward_coef": _REWARD_KL,
    **dict.fromkeys(("kl_loss_type", "kl_penalty", "kl_estimator"), _ESTIMATOR),
    **dict.fromkeys(("entropy_coef", "entropy_coeff", "ent_coef"), _ENTROPY),
    **dict.fromkeys(("tis_imp_ratio_cap", "rollout_is_threshold", "imp_ratio_cap", "tis_cap"), _CAP),
    # settings of a run
    **dict.fromkeys(("num_generations", "n_samples_per_prompt", "group_size", "rollout_n"), _SAMPLES),
    **dict.fromkeys(("lr", "actor_lr", "critic_lr"), "learning_rate, in the call of config.phase.NAME.optimizer"),
    "shared_critic": "config.module.value.trunk='policy', with the weight of its loss in trunk_weight",
    **dict.fromkeys(("weight_decay", "betas"), "an argument of the call in config.phase.NAME.optimizer"),
    **dict.fromkeys(("max_tokens", "max_new_tokens", "max_completion_length", "response_length"), _LENGTH),
    **dict.fromkeys(("max_steps", "total_steps", "num_train_steps", "total_training_steps"), _STEPS),
    **dict.fromkeys(("output_dir", "save_dir", "checkpoint_dir", "default_local_dir"), "--workdir"),
}
"""Keys are names in other libraries; each value completes the sentence "Here that is ..."."""

_KLS = ("kl", "coefficient")
_REINFORCE = ("reinforce++", "reinforcepp", "reinforce_pp", "rpp")

SAME: dict[str, tuple[str, ...]] = {
    # recipes
    **dict.fromkeys(("dr.grpo", "drgrpo", "grpo_done_right"), ("dr_grpo",)),
    **dict.fromkeys(_REINFORCE, ("reinforce_plus_plus",)),
    **dict.fromkeys((f"{name}_baseline" for name in _REINFORCE), ("reinforce_plus_plus_baseline",)),
    **dict.fromkeys(("pg", "vpg", "policy_gradient", "vanilla_policy_gradient"), ("reinforce",)),
    **dict.fromkeys(("bc", "supervised", "behaviour_cloning", "behavior_cloning"), ("sft",)),
    # arguments
    **dict.fromkeys(("beta", "kl_coef", "kl_loss_coef", "kl_coeff", "init_kl_coef", "kl_beta"), _KLS),
    **dict.fromkeys(("entropy_coef", "entropy_coeff", "ent_coef"), ("entropy", "coefficient")),
    **dict.fromkeys(("kl_loss_type", "kl_penalty", "kl_estimator"), ("estimator",)),
    **dict.fromkeys(("clip_ratio_low", "epsilon_low", "eps_clip_low", "cliprange_low", "clip_low"), ("low",)),
    **dict.fromkeys(("clip_ratio_high", "epsilon_high", "eps_clip_high", "cliprange_high", "clip_high"), ("high",)),
    "clip_ratio_c": ("dual",),
    **dict.fromkeys(("cliprange_value", "vf_clip", "vf_clip_param", "value_clip_range"), ("value_clip",)),
    **dict.fromkeys(("discount", "discount_factor"), ("gamma",)),
    **dict.fromkeys(("lambda", "lambda_", "lmbda", "gae_lambda"), ("lam",)),
    **dict.fromkeys(("tis_imp_ratio_cap", "imp_ratio_cap", "tis_cap"), ("cap",)),
    **dict.fromkeys(("lr", "step_size"), ("learning_rate",)),
    **dict.fromkeys(
        ("max_tokens", "max_new_tokens", "max_completion_length", "response_length"), ("completion_length",)
    ),
    # fields
    **dict.fromkeys(("ppo_epochs", "num_iterations", "num_ppo_epochs", "num_epochs"), ("epochs",)),
    **dict.fromkeys(("num_mini_batches", "num_minibatches"), ("minibatches",)),
    **dict.fromkeys(("gradient_accumulation_steps", "grad_accum", "accumulation_steps"), ("microbatches",)),
    **dict.fromkeys(("max_grad_norm", "grad_clip", "gradient_clip_val"), ("clip_norm",)),
    **dict.fromkeys(("train_batch_size", "rollout_batch_size", "batch_size"), ("prompts",)),
    **dict.fromkeys(("model_name", "model_path", "model_name_or_path", "pretrained"), ("weights",)),
    **dict.fromkeys(("warmup_steps", "lr_warmup_steps"), ("warmup",)),
    **dict.fromkeys(("stop_strings", "stop_sequences"), ("stop",)),
    "temp": ("temperature",),
    "random_seed": ("seed",),
}
"""Names in other libraries, in lower case, with ours for the same argument or field; the first that is valid counts."""
