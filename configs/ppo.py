"""Two-digit addition by PPO: the task and the warm start of the quickstart, a critic alone, then PPO.

Command:   python -m rljax --config configs/ppo.py
Hardware:  two CPU cores, no accelerator; 1.5 GiB.
Time:      an estimate: twice to three times that of configs/quickstart.py.
Score:     held-out pass@1 37 % to 98.0 % [96.9, 99.1] and greedy 53 % to 99.5 %, means of seeds 0, 1 and 2, beside
           96.1 % [87.7, 100.0] and 98.2 % by GRPO (configs/quickstart.py). On a smaller network, after 15,360
           completions: PPO minus GRPO 3.8 points [1.4, 6.3], seeds 0 to 4 (experiments/ppo).

The critic is a network like the policy and starts from its parameters. It first fits the returns of a policy that does
not move, on the completions of 8 steps. Steps of PPO have 512 prompts with one completion each, where those of GRPO
have 64 with 8: both sample 61,440 completions in all.
"""

import rljax


def get_config(arg: str = ""):
    """Return the config; ``arg`` "quick" runs every part of it and is too short to learn (see quickstart:quick)."""
    if arg not in ("", "quick"):
        raise ValueError(f"ppo:{arg}: the only variant is 'quick'.")
    config = rljax.get_config("quickstart")
    config.name = "ppo"
    config.phases = ("warm", "critic", "main")
    batch = {"prompts": 512, "samples": 1}
    critic = "adamw(learning_rate=1e-3, weight_decay=0.0)"
    config.phase.critic = rljax.phase(
        algorithm="critic_warmup()", steps=8, batch=batch, learner={"epochs": 4}, optimizer=critic, warmup=2
    )
    config.phase.main.algorithm = f"ppo(kl=0.0, lam=1.0, critic_epochs=2, critic_optimizer={critic!r})"
    config.phase.main.update({"steps": 112, "batch": batch})
    if arg == "quick":
        config.phase.warm.steps = 4
        config.phase.critic.update({"steps": 1, "warmup": 1, "batch": {"prompts": 32, "samples": 1}})
        config.phase.main.update({"steps": 2, "batch": {"prompts": 32, "samples": 1}})
        config.evaluation.update({"final_prompts": 16, "final_samples": 4})
    return config
