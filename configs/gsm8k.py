"""GSM8K from random weights: tokenizer, supervised warm start and GRPO with answers checked by worker processes.

Command:   python -m rljax --config configs/gsm8k.py --config.task="gsm8k(path='DIR')"
           DIR contains the data set's train.jsonl and test.jsonl (7,473 and 1,319 problems); nothing is downloaded.
Hardware:  two CPU cores, no accelerator.
Time:      3 min 28 s; 1.8 GiB.
Score:     about 0, because no pretrained weights are used. After 1,280 solutions, half a million parameters reproduce
           the format ("... #### 13") in three completions of four and the correct answer in about 1 of 100, by
           chance. Held-out pass@1 of the measured run, 32 prompts x 4 samples: 0.0 % before RL, 0.8 % after. The
           reward is 0 or 1; ``reward/format`` in the metrics is the fraction of answers that the verifier can
           parse. The config demonstrates the whole path: text files, host verifiers, checkpoints and resumption.

The tokenizer is a BPE model of 1,024 pieces, trained on the training problems and solutions. With it the longest
prompt has 365 tokens and the longest solution 404. All prompts fit the task's default length of 384; the one longer
solution is truncated, without an end-of-sequence token, and a warning says so. Another tokenizer may need
``prompt_length=`` in the task's call, or ``overlong='drop'`` to leave training problems out.
"""

import rljax


def get_config(arg: str = ""):
    """Return the config; ``arg`` "quick" fits a test and a few hundred problems and learns nothing."""
    config = rljax.default_config()
    config.name = "gsm8k"
    config.task = "gsm8k(path='data/gsm8k')"
    config.tokenizer.update({"kind": "bpe", "vocabulary": 1024})
    config.algorithm = "grpo(kl=0.0)"
    config.model.update({"layers": 2, "width": 128, "heads": 2, "kv_heads": 1, "hidden": 384})
    config.batch.update({"prompts": 8, "samples": 4})
    config.phases = ("warm", "main")
    config.phase.warm = rljax.phase(
        algorithm="sft()",
        steps=80,
        batch={"prompts": 16},
        optimizer="adamw(learning_rate=3e-3, weight_decay=0.0)",
        warmup=10,
        evaluate="base",
    )
    config.phase.main = rljax.phase(
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
