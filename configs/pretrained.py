r"""A published model on GSM8K or MATH: GRPO, answers checked by worker processes, prompts by the model's chat template.

Command:   python -m rljax --config configs/pretrained.py:qwen2.5-0.5b --config.model.weights=MODEL_DIR \
               --config.task="gsm8k(path='DATA_DIR', chat=True)"
           MODEL_DIR contains config.json, *.safetensors and tokenizer.json as published, and may be on gs://;
           DATA_DIR contains the data set's train.jsonl and test.jsonl. ``:MODEL,math`` uses MATH. Nothing is
           downloaded.
Hardware:  accelerators. In float32 with AdamW, parameters, gradients and both moments need 16 bytes per parameter,
           sharded over the mesh (``mesh.fsdp``), in addition to activations:

               qwen2.5-0.5b   7.4 GiB     qwen3-1.7b   25.6 GiB     llama-3.1-8b   119.7 GiB
               qwen2.5-1.5b  23.0 GiB     qwen3-4b     59.9 GiB     gemma-3-1b      14.9 GiB
               qwen2.5-7b   113.5 GiB     qwen3-8b    122.1 GiB     gemma-3-4b      57.8 GiB

           ``model.adapter_rank=16`` reduces this to 4 bytes per parameter, or 2 with ``model.param_dtype=bfloat16``.
           tpu/TOPOLOGIES.md lists the TPU memory of whole steps, compiled for slices of 4 to 512 chips. A rollout
           needs 2 more bytes per parameter on every chip, fewer with ``mesh.fsdp_tensor``. The prompts of a
           micro-batch should divide over the chips: for qwen3-8b on v5p:4x4x4 set mesh.fsdp=16, mesh.fsdp_tensor=4
           and learner.microbatches=1.
Time:      not measured: no accelerator was available.
Score:     not measured: neither an accelerator nor the published weights were available.

Without ``model.weights`` the network has the model's architecture and random weights; ``tokenizer.kind=bytes`` then
supplies a tokenizer. Two such steps of the 0.5B model were run on two CPU cores.
"""

import rljax
from rljax import models

TASKS = {"gsm8k": "gsm8k(path='data/gsm8k', chat=True)", "math": "math(path='data/math', chat=True)"}


def get_config(arg: str = ""):
    """Return the config of "MODEL" or "MODEL,TASK" (qwen2.5-0.5b, gsm8k); "quick" learns nothing."""
    quick = arg == "quick"
    model, _, task = ("" if quick else arg).partition(",")
    if task not in ("", *TASKS):
        raise ValueError(f"pretrained:{arg}: unknown task {task!r}. Valid: {', '.join(TASKS)}.")
    config = rljax.default_config()
    config.name = "pretrained"
    config.task = TASKS[task or "gsm8k"]
    try:
        config.model.update(models.preset(model or "qwen2.5-0.5b"))
    except ValueError as error:
        raise ValueError(f"pretrained:{arg}: {error}") from None
    config.model.update({"dtype": "bfloat16", "scan": True})
    config.algorithm = "dr_grpo()"
    config.batch.update({"prompts": 64, "samples": 8})
    config.sampler.update({"cache_block": 128, "layout": "resident"})
    config.learner.update({"microbatches": 16, "vocabulary": 16_384})
    config.mesh.update({"data": 1, "fsdp": -1})
    config.phase.main = rljax.phase(
        steps=200, optimizer="adamw(learning_rate=1e-6, weight_decay=0.0)", warmup=10, evaluate="result"
    )
    config.evaluation.update({"final_prompts": 256, "final_samples": 4})
    config.checkpoint.every = 50
    if quick:
        config.task = config.task.replace(", chat=True", ", prompt_length=1024, completion_length=16")
        config.tokenizer.kind = "bytes"
        config.model.update(
            {"vocabulary": 0, "layers": 2, "width": 32, "heads": 2, "kv_heads": 1, "head_size": 16, "hidden": 48}
        )
        config.batch.update({"prompts": 4, "samples": 2})
        config.learner.microbatches, config.phase.main.steps = 2, 2
        config.evaluation.update({"final_prompts": 4, "final_samples": 2})
    return config
