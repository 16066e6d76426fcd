"""The schema of a config: every field with its default."""

import dataclasses
from typing import TYPE_CHECKING, Any

import ml_collections

from rljax import models, transforms
from rljax.language import parse
from rljax.training.sharding import AXES

if TYPE_CHECKING:

    class ConfigDict(Any):
        """A ConfigDict whose fields a type checker takes as they come."""

else:
    ConfigDict = ml_collections.ConfigDict


def default() -> ConfigDict:
    """Return every field with its default value; a config file changes some of them."""
    return ConfigDict(
        {
            "name": "run",
            "seed": 0,
            "cpu_devices": 0,  # on a CPU, devices to make of its cores, which then work apart; 0: one
            "task": "arithmetic()",
            "algorithm": "grpo()",
            "seam": dict.fromkeys(
                transforms.SEAMS, ""
            ),  # "" keeps the recipe's pieces, "a() | b()" replaces, "+ a()" appends, "none" removes
            "tokenizer": {
                "kind": "char",  # "char", "bpe" and "unigram" are trained on the task's text; or "bytes"
                "vocabulary": 0,  # ids to make; 0: as many as characters
                "path": "",  # folder with tokenizer.json or a SentencePiece model, gs:// too, to load instead
            },
            "model": _model(),
            "sampler": _sampler(),
            "batch": {"prompts": 32, "samples": 16},  # of one step; a phase may set its own
            "learner": {
                "epochs": 1,
                "minibatches": 1,
                "microbatches": 1,
                "share_prompt": True,  # read a prompt once for all its completions
                "lanes": 0,  # pack a prompt's completions into rows, this many in a unit of work; 0: a row each
                "vocabulary": 4096,  # tokens of the vocabulary whose logits exist at once; 0: all
                "keep_logits": False,  # for the backward pass, in place of making them again: faster, and all are there
                "shared_critic": 0.0,  # 0: critic apart; else a head on the policy's trunk, its loss times this
                "rounding": "nearest",  # of parameters in bfloat16, or "stochastic": small updates count, by chance
                "offload": False,  # keep optimizer state in the host's memory between updates
                "clip_norm": 1.0,  # of the gradient, 0 for none
                "max_skipped": 5,  # non-finite updates in a row before the run stops
            },
            "phases": ("main",),  # names, in order
            "phase": {"main": phase()},
            "mesh": {axis: -1 if axis == "data" else 1 for axis in AXES},  # -1: the devices left over; see ``sharding``
            "verifier": {"workers": 2, "timeout": 5.0, "chunks": 2},  # host tasks; chunks overlap decoding
            "evaluation": {
                "every": 0,  # steps; 0 for none during training
                "prompts": 128,
                "samples": 32,
                "final_prompts": 256,  # of the evaluations that phases name
                "final_samples": 64,
            },
            "checkpoint": {"every": 100, "max_to_keep": 2},
            "log": {"every": 10, "rollouts": 50, "rollout_rows": 8},  # steps; rollouts 0 for no dump
            "profile": "",  # "steps 10-12": trace these to WORKDIR/profile
        }
    )


def _model() -> dict[str, Any]:
    """Return the fields of the architecture, see ``models.Architecture``, and of how it is computed."""
    architecture = {f.name: f.default for f in dataclasses.fields(models.Architecture) if f.name != "output"}
    return {
        **architecture,
        "weights": "",  # folder of a public checkpoint to start from, gs:// too: it decides the architecture
        "vocabulary": 0,  # 0: the tokenizer's; else at least that
        "layers": 2,
        "width": 128,
        "heads": 4,
        "kv_heads": 2,
        "hidden": 384,
        "remat": "full",  # "none", "full" or "dots": what the backward pass makes again; "full" is the smallest
        "scan": False,  # layers in one loop: compiles once for all of them, runs slower
        "attention": "blocked",  # or "plain"; "cudnn" on GPU, "splash" on TPU. Decoding has its own
    }


def _sampler() -> dict[str, Any]:
    """Return the fields of sampling."""
    return {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "draw": "gumbel",  # or "inverse": one random number for a token, not one for each of the vocabulary
        "rescore": "unfiltered",  # or "kept": the trainer renormalises over the support the sampler kept
        "stop": (),  # texts that end a completion once it holds one, beside the tokenizer's own stop tokens
        "cache_block": 64,  # tokens by which the part of the cache that is read grows; 0: all of it at once
        "layout": "update",  # of the policy, or "resident": fetched once, not a layer for each token; see ``sharding``
        "compact": 0,  # how often the batch may shrink to half its rows as rows end; each compiles a loop
    }


def phase(**fields: Any) -> ConfigDict:
    """Return a phase: one algorithm for a number of steps."""
    schema = {
        "algorithm": "",  # "" is config.algorithm with config.seam; a call of its own ignores both
        "steps": 100,
        "optimizer": "adamw(learning_rate=1e-3, weight_decay=0.0)",  # calls of optax, chained with |
        "reset_optimizer": True,  # start with a fresh optimizer state
        "warmup": 20,  # steps over which updates grow to full size: a fresh Adam destroys a trained policy
        "reference": "start",  # "start": the policy as the phase begins; "keep": the one of the phase before
        "prompts": 0,  # 0 is config.batch.prompts
        "samples": 0,
        "evaluate": "",  # name of the evaluation made when the phase ends; "" for none
    }
    unknown = sorted(set(fields) - set(schema))
    if unknown:
        raise ValueError(f"phase: unknown field {unknown[0]!r}.{parse.nearest(unknown[0], schema)}")
    return ConfigDict({**schema, **fields})
