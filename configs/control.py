"""Control: PPO on systems that are observed and acted on at every step of time.

Command:   python -m rljax --config configs/control.py
Hardware:  two CPU cores, no accelerator; 1 GiB.
Time:      20 s.
Score:     held-out return 500 of 500 in five of five seeds.

The policy balances a pole on a cart, ``cartpole``. The same algorithm as for tokens, ``ppo()``, trains a policy of two
layers of 64 units: a row is a window of 128 steps of an episode, which goes on in the next row of its place. Others:
``configs/control.py:pendulum``, return -158 (means of five seeds), ``:acrobot``, -81, ``:mountain_car``, 95.7,
``:quadrotor``, all gates of 95 % of the tracks (one seed), ``:point_maze``, 69 % solved (one seed), ``:lqr``, a linear
policy whose gain is 1.5 to 2.0 % from that of Riccati's equation (``lqr.riccati``; three seeds, 33 to 45 s of
processor time each), ``:physics``, poles of many lengths, held out where they are longer than those of training, and
``:levels``, poles of which most cannot be balanced, drawn by learning progress: 10 % solved (one seed).
``:flow``, -174, and ``:sde``, -163, denoise the actions of the pendulum. ``:dppo`` and ``:cloned`` imitate an expert
first: -163, greedy -155, of chains, and -154, greedy -153, of Gaussians (means of five seeds, 3:8). ``:sac`` trains
twin critics of actions on stored windows: -151 after 96,000 steps of the pendulum (means of three seeds, 70 s
together), where ``ppo()`` has -798.

``:offline_cloning``, ``:offline_iql``, ``:offline_awac``, ``:offline_cql`` and ``:offline_sac`` train on a file that
``python -m rljax data record`` has written: ``--config.seam.source="recorded('medium.npz', 4)"``. Held-out returns,
means of three seeds, 20,000 steps of each: of random actions; of a SAC run after 300 steps, of its checkpoints at 50 to
300 together, and at its end (returns in the files -1263, -608, -1184, -173):

=======  =======  ======  ======  ======
method   random   medium  mixed   expert
=======  =======  ======  ======  ======
cloning  -1236    -599    -1222   -154
IQL      -295     -261    -787    -154
CQL      -180     -299    -572    -212
SAC      -157     -1569   -1470   -1615
=======  =======  ======  ======  ======
"""

import rljax

LEVELS = "length=(0.05, 2.0), cart=(1.0, 400.0), gravity=(1.0, 60.0)"  # the motor is too weak for most of them
# task, episodes at a time, steps of a window, discount, factor of rewards, updates
TASKS = {
    "cartpole": ("cartpole()", 16, 128, 0.99, 0.05, 200),
    "physics": ("cartpole(length=(0.25, 1.0), heldout_length=(1.01, 2.0), shown=True)", 16, 128, 0.99, 0.05, 300),
    "pendulum": ("pendulum()", 64, 50, 0.95, 0.1, 200),
    "acrobot": ("acrobot()", 64, 64, 0.99, 0.1, 200),
    "mountain_car": ("mountain_car()", 64, 128, 0.999, 0.1, 300),
    "point_maze": ("point_maze(side=4, reward='shaped')", 64, 50, 0.99, 1.0, 300),
    "quadrotor": ("quadrotor()", 64, 50, 0.99, 1.0, 300),
    "levels": (f"cartpole({LEVELS}, shown=True, horizon=200)", 16, 200, 0.99, 0.05, 480),
    "lqr": ("lqr(horizon=100, noise=0.3)", 1024, 100, 0.95, 0.1, 300),
}
SAC = "unrolled(4) | replay(1.0, 1500)", "sac(alpha=dual_entropy(-2.0, 0.1, 0.01), gamma=0.95)"  # of the pendulum
OFFLINE = {  # on windows of 4 steps of a file of the pendulum
    "offline_cloning": "sft()",
    "offline_iql": "iql(gamma=0.95, beta=0.1)",
    "offline_awac": "iql(gamma=0.95, beta=0.1, expectile=0.5)",
    "offline_cql": "cql(alpha=dual_entropy(-1.0, 0.1, 0.01), gamma=0.95, coefficient=1.0, samples=5)",
    "offline_sac": "sac(alpha=dual_entropy(-1.0, 0.1, 0.01), gamma=0.95, share=0.0)",
}
CHAINS = {"flow": {"steps": 4, "log_std": -1.0}, "sde": {"steps": 4, "noise": "sde"}}  # of the pendulum's actions
CHAINS["dppo"] = {"steps": 4, "log_std": -2.0, "positions": "step"}
CLONED = ("dppo", "cloned")  # the expert of the pendulum is imitated first


def get_config(arg: str = "cartpole"):
    """Return the config; ``arg``: a task, or "quick", short."""
    arg = arg or "cartpole"
    others = (*CHAINS, "cloned", "sac", *OFFLINE)  # of the pendulum
    if arg not in (*TASKS, *others, "quick"):
        raise ValueError(f"control:{arg}: choose one of {', '.join((*TASKS, *others))}, 'quick'.")
    config = rljax.default_config()
    config.name = "control"
    config.task, places, window, gamma, factor, steps = TASKS.get(
        "pendulum" if arg in others else arg, TASKS["cartpole"]
    )
    config.algorithm = f"ppo(gamma={gamma}, kl=0.0, value_clip=None)"
    config.seam.source = f"unrolled({window})"
    config.seam.reward = f"scale({factor})"
    config.model.kind = "mlp"
    config.model.mlp.normalise = True
    config.model.denoising.update(CHAINS.get(arg, {}))
    config.batch.update({"prompts": places, "samples": 1})
    config.learner.update({"epochs": 8, "minibatches": 4, "clip_norm": 0.5})
    config.evaluation.update({"final_prompts": 256, "final_samples": 4})
    config.phase.main = rljax.phase(
        steps=steps, optimizer=f"adam(learning_rate=linear_schedule(1e-3, 0.0, {steps * 32}))", evaluate="result"
    )
    if arg == "levels":  # whole episodes, so that a problem's reward is that of its row
        config.seam.source = "alp_gmm()"
        config.learner.epochs = 4
        config.phase.main.optimizer = "adam(learning_rate=1e-3)"
    if arg == "lqr":  # with lam=1 the critic is a baseline, and its error no bias
        config.algorithm = f"ppo(gamma={gamma}, lam=1.0, kl=0.0, value_clip=None)"
        config.model.mlp.update({"layers": 0, "normalise": False})
        config.learner.epochs = 2
        config.phase.main.optimizer = f"adam(learning_rate=linear_schedule(3e-3, 0.0, {steps * 8}))"
    if arg in CLONED:
        config.phases = ("clone", "main")
        config.phase.clone = rljax.phase(
            algorithm="sft()",
            steps=600,
            batch={"prompts": 64, "samples": 1},
            learner={"minibatches": 1, "epochs": 1},
            optimizer="adam(learning_rate=cosine_decay_schedule(3e-3, 600))",
            evaluate="base",
        )
        rate = 3e-4 if arg == "dppo" else 1e-3
        config.phase.main.update(
            {"steps": 150, "optimizer": f"adam(learning_rate=linear_schedule({rate}, 0.0, {150 * 32}))"}
        )
    if arg == "dppo":
        config.algorithm = f"diffusion_ppo(gamma={gamma})"
    if arg in ("sac", *OFFLINE):
        for name in ("q", "q_2") if arg != "offline_cloning" else ():
            config.module[name] = rljax.module(weights="random")
            config.module[f"{name}_target"] = rljax.module(follows=name, rate=0.04)
        config.model.mlp.update({"normalise": False, "squash": True, "activation": "relu"})
        config.learner.update({"minibatches": 1, "clip_norm": 10.0})
    if arg == "sac":  # 64 steps of the pendulum, then 8 gradient steps on 256 stored ones, over and over
        config.seam.source, config.algorithm = SAC
        config.model.mlp.std = "output"
        config.batch.prompts = 16
        optimizer = "adam(learning_rate=linear_schedule(1e-3, 0.0, 12000))"
        config.phase.main.update({"steps": 1500, "optimizer": optimizer})
    if arg in OFFLINE:  # 8 gradient steps on 32 windows each, over and over
        config.algorithm, config.seam.source = OFFLINE[arg], "recorded('pendulum.npz', 4)"
        config.batch.prompts = 256
        config.learner.update({"epochs": 1, "minibatches": 8})
        optimizer = "adam(learning_rate=linear_schedule(1e-3, 0.0, 8000))"
        config.phase.main.update({"steps": 1000, "optimizer": optimizer})
    if arg == "quick":
        config.batch.prompts = 8
        config.phase.main = rljax.phase(steps=3)
        config.evaluation.update({"final_prompts": 8, "final_samples": 2})
    return config
