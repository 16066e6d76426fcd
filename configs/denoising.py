"""Denoising: a chain that ends in a point of the plane is cloned from samples, then rewarded.

Command:   python -m rljax --config configs/denoising.py
Hardware:  two CPU cores, no accelerator; 1 GiB.
Time:      1:45 min, compilation and evaluations included.
Score:     held-out pass@1 11.3 [10.3, 12.2] % to 42.7 [41.2, 44.2] %, return 0.0 to 0.8 (seed 0).

The policy denoises the action of ``modes()``: 10 steps from N(0, I) to a ring of eight Gaussians. A position of a row
is a step, so that each has a ratio of its own. A group is 8 chains for one prompt, a direction, and is paid for the way
along it. The methods differ by the algorithm and by settings of the chain, ``config.model.denoising``:
``configs/denoising.py:flow_grpo`` is the default. ``:ddpo``, ``:dance_grpo``, ``:b2_diffurl``, ``:rlcm`` and ``:pi_rl``
earn 1.7 to 1.8 and solve nothing: without a penalty they leave the ring (``experiments/denoising``; the second and the
third with all steps and all branches). ``:dppo``, whose last two steps have a network of their own and are trained,
learns little: return 0.1, pass@1 9.8 %. ``:flow_grpo_fast``, with noise in three steps, goes from pass@1 1.6 % to
25.2 %, greedy from 0 to 73 %, return 1.0 (seed 0 each).
"""

import rljax

# algorithm, penalty, weight and settings of the chain
METHODS = {
    "ddpo": ("grpo(kl=0.0, low=0.1, high=0.1)", {"advantage": "zscore_by_prompt(64)"}, {}),
    "flow_grpo": ("grpo(kl=0.0)", {"penalty": "+ exact_kl('reverse_kl', 0.2)"}, {}),
    "flow_grpo_fast": ("grpo(kl=0.0)", {"penalty": "+ exact_kl('reverse_kl', 0.2)"}, {"first": 2, "last": 5}),
    "dance_grpo": ("grpo(kl=0.0)", {"prepare": "+ random_positions(0.6)"}, {"shared": 1}),
    "dppo": ("diffusion_ppo(last=2)", {}, {"split": 8}),
    "b2_diffurl": (
        "grpo(kl=0.0)",
        {"prepare": "+ best_and_worst()", "weight": "+ turn_end(linear(2.0, 10.0, 100))"},
        {"shared": 4},
    ),
    "rlcm": ("grpo(kl=0.0)", {}, {"noise": "renoised", "log_std": -2.5}),
    "pi_rl": ("ppo(kl=0.0)", {}, {"noise": "learned", "log_std": -2.5, "positions": "action"}),
}


def get_config(arg: str = "flow_grpo"):
    """Return the config; ``arg``: a method, or "quick", short."""
    arg = arg or "flow_grpo"
    if arg not in (*METHODS, "quick"):
        raise ValueError(f"denoising:{arg}: choose one of {', '.join(METHODS)}, 'quick'.")
    config = rljax.default_config()
    config.name = "denoising"
    config.task = "modes()"
    config.algorithm, seams, chain = METHODS.get(arg, METHODS["flow_grpo"])
    config.model.kind = "mlp"
    config.model.mlp.update({"layers": 3, "width": 128, "activation": "silu"})
    config.model.denoising.update({"steps": 10, "noise": "sde", "log_std": -0.7, "positions": "step", **chain})
    config.batch.update({"prompts": 64, "samples": 8})
    config.learner.update({"epochs": 1, "minibatches": 2, "clip_norm": 1.0})
    config.evaluation.update({"final_prompts": 512, "final_samples": 8})
    config.phases = ("clone", "main")
    config.phase.clone = rljax.phase(
        algorithm="sft()",
        steps=4000,
        batch={"prompts": 512, "samples": 1},
        learner={"minibatches": 1},
        optimizer="adam(learning_rate=cosine_decay_schedule(3e-3, 4000))",
        evaluate="base",
    )
    config.phase.main = rljax.phase(steps=200, optimizer="adam(learning_rate=3e-4)", evaluate="result", seam=seams)
    if arg == "ddpo":  # each prompt comes back, and has the statistics of its last 16 rewards
        config.phase.main.task = "modes(prompts=64)"
    if arg == "quick":
        config.batch.prompts = 8
        config.phase.clone.steps, config.phase.main.steps = 3, 3
        config.phase.clone.batch.prompts = 8
        config.evaluation.update({"final_prompts": 8, "final_samples": 2})
    return config
