"""GSM8K."""

from rljax import config as configs


def get_config(arg: str = ""):
    """Return the config; ``arg`` "quick" makes it small enough for a test and a few hundred problems."""
    config = configs.default()
    config.name = "gsm8k"
    config.task = "gsm8k(path='data/gsm8k')"
    config.tokenizer.update({"kind": "bpe", "vocabulary": 1024})
    config.algorithm = "grpo(kl=0.0)"
    config.model.update({"layers": 2, "width": 128, "heads": 2, "kv_heads": 1, "hidden": 384})
    config.batch.update({"prompts": 8, "samples": 4})
    config.phases = ("warm", "main")
    config.phase.warm = configs.phase(
        algorithm="sft()",
        steps=80,
        prompts=16,
        optimizer="adamw(learning_rate=3e-3, weight_decay=0.0)",
        warmup=10,
        evaluate="base",
    )
    config.phase.main = configs.phase(
        steps=15, optimizer="adamw(learning_rate=3e-4, weight_decay=0.0)", warmup=5, evaluate="result"
    )
    config.evaluation.update({"final_prompts": 32, "final_samples": 4})
    config.checkpoint.every = 20
    config.log.rollouts = 5
    if arg == "quick":
        config.tokenizer.vocabulary = 256
        config.model.update({"layers": 1, "width": 32, "hidden": 64})
        config.phase.warm.steps, config.phase.main.steps = 3, 2
        config.evaluation.update({"final_prompts": 4, "final_samples": 2})
    elif arg:
        raise ValueError(f"gsm8k:{arg}: the only variant is 'quick'.")
    return config
