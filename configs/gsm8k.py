"""GSM8K."""

from rljax import config as configs


def get_config(arg: str = ""):
    """Return the config."""
    config = configs.default()
    config.name = "gsm8k"
    config.task = "gsm8k(path='data/gsm8k')"
    config.algorithm = "grpo(kl=0.0)"
    config.tokenizer.update({"kind": "bpe", "vocabulary": 1024})
    config.model.update({"layers": 2, "width": 128, "heads": 4, "kv_heads": 2, "hidden": 384})
    config.batch.update({"prompts": 8, "samples": 8})
    config.phases = ("warm", "main")
    config.phase.warm = configs.phase(algorithm="sft()", steps=10, prompts=16, warmup=20, evaluate="base")
    config.phase.main = configs.phase(
        steps=4, optimizer="adamw(learning_rate=1e-4, weight_decay=0.0)", warmup=5, evaluate="result"
    )
    config.evaluation.update({"final_prompts": 16, "final_samples": 4})
    config.log.update({"every": 1, "rollouts": 5})
    return config
