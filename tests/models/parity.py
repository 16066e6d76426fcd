"""Parity with transformers 4.57 and 5 over random architectures, both directions. Not part of either tier.

    python -m tests.models.parity --folder /tmp/parity --count 42 --seed 0

Creates a virtual environment for each version in the folder, or uses the one that is there. For each architecture,
transformers writes a language model and a model with a scalar head, and its logits and scores are compared with those
of this package (``read``); this package writes both without ``like``, and transformers reads them (``export``). Models
with a vision tower have no scalar head, read prompts with two pictures, and are written with ``like``: version 4 needs
the token before a picture.
"""

import argparse
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import venv

import numpy as np

from tests.support.reference import families as reference

VERSIONS = {"4": "transformers==4.57.*", "5": "transformers>=5,<6"}
VOCABULARY, LENGTH, TOLERANCE = 40, 24, 1e-4
TOKEN = np.random.default_rng(0).integers(1, VOCABULARY, (2, LENGTH))  # 0 is padding
FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3", "Qwen3Moe", "Gemma2", "Gemma3Text", "Gemma3", "Qwen2_5_VL")
TOWERS = FAMILIES[-2:]
TOKENS = 4  # of a picture


def draw(seed, number):
    """Return the class of the configuration and its arguments, as version 4 names them."""
    rng = np.random.default_rng([seed, number])
    family = FAMILIES[number % len(FAMILIES)]

    def pick(*choices):
        return choices[rng.integers(len(choices))]

    layers, kv_heads = int(rng.integers(1, 5)), pick(1, 2, 3)
    heads, window = kv_heads * pick(1, 2, 3), pick(None, 3, 5, 8)
    config = {
        "vocab_size": VOCABULARY,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": pick(2, 4, 6, 10),
        # narrower models amplify rounding; grouped matmuls of version 5 need rows of 16 bytes
        "hidden_size": heads * pick(*(size for size in (4, 8, 12, 16) if heads * size >= 16)),
        "intermediate_size": pick(7, 16, 24),
        "tie_word_embeddings": pick(False, True),
        "rms_norm_eps": pick(1e-6, 1e-5, 1e-3),
        "rope_theta": pick(500.0, 1e4, 1e6),
        "rope_scaling": _scaling(pick, truncate=not family.startswith("Gemma3")),  # version 5 does not read it there
        "max_position_embeddings": 128,
        "pad_token_id": 0,
    }
    kinds = [pick("sliding_attention", "full_attention") for _ in range(layers)]
    if family == "Llama":
        config |= {"attention_bias": pick(False, True), "mlp_bias": pick(False, True)}
    if family in ("Qwen3", "Qwen3Moe", "Gemma2", "Gemma3Text", "Gemma3"):
        config |= {"attention_bias": pick(False, False, True)}
    if family == "Mistral":
        config |= {"sliding_window": window}
    if family.startswith("Qwen"):
        config |= {"sliding_window": window or 4, "use_sliding_window": bool(window)}
        config |= {"max_window_layers": int(rng.integers(0, 4))}  # Qwen3Moe ignores it
    if family in ("Qwen2", "Qwen3") and window:
        config |= pick({"layer_types": kinds}, {})
    if family == "Qwen3Moe":
        config |= {"num_experts": pick(2, 6), "num_experts_per_tok": pick(1, 2), "moe_intermediate_size": pick(4, 12)}
        config |= {"norm_topk_prob": pick(False, True)}
    if family.startswith("Gemma"):
        config |= {
            "sliding_window": window or 4,
            "query_pre_attn_scalar": pick(4, 9),
            **pick({"layer_types": kinds}, {}),
        }
        config |= {"final_logit_softcapping": pick(None, 3.0)}
    if family == "Gemma2":
        config |= {"attn_logit_softcapping": pick(None, 2.0)}
    if family.startswith("Gemma3"):
        config |= {"rope_local_base_freq": pick(100.0, 1e4), **pick({"sliding_window_pattern": pick(2, 3)}, {})}
    if family in TOWERS:
        config = _seeing(family, config, pick)
    return f"{family}Config", config


def _seeing(family, text, pick):
    """Return the configuration of a model with a tower, given its decoder's."""
    patch, width = pick(2, 4), pick(8, 16, 24)
    sizes = {"hidden_size": width, "intermediate_size": pick(7, 16), "patch_size": patch}
    if family == "Gemma3":
        sizes |= {"image_size": patch * 2 * pick(1, 2, 4), "num_hidden_layers": pick(1, 3), "num_attention_heads": 2}
        vision = {"model_type": "siglip_vision_model", "vision_use_head": False, **sizes}
        outer = {"mm_tokens_per_image": TOKENS, "image_token_index": reference.PICTURE}
        del text["final_logit_softcapping"]  # its class does not apply it
        text["sliding_window"] = max(text["sliding_window"], TOKENS)  # version 4 widens a window shorter than a picture
        return {"text_config": {**text, "tie_word_embeddings": True}, "vision_config": vision, **outer}
    head, windows = pick(6, 8, 10), {"window_size": patch * pick(2, 4, 8), "fullatt_block_indexes": pick([0], [1], [])}
    sections = {6: [1, 1, 1], 8: [1, 2, 1], 10: [2, 1, 2]}[head]
    text |= {"hidden_size": text["num_attention_heads"] * head, "use_sliding_window": False}
    text["rope_scaling"] = {**(text["rope_scaling"] or {"type": "mrope"}), "mrope_section": sections}
    del text["head_dim"]
    sizes |= {"depth": pick(1, 3), "num_heads": 2, "out_hidden_size": text["hidden_size"], **windows}
    tokens = {"image_token_id": reference.PICTURE, "vision_start_token_id": 37, "vision_end_token_id": 38}
    return {**text, "vision_config": sizes, **tokens, "video_token_id": 36}


def pictures(kind, fields):
    """Return the tokens and pictures of a model with a tower; TOKEN and None without one."""
    if kind.removesuffix("Config") not in TOWERS:
        return TOKEN, None
    vision = fields["vision_config"]
    return reference.pictures(vision.get("image_size", 4 * vision["patch_size"]), TOKENS)


def _scaling(pick, truncate):
    kind = pick(None, "linear", "llama3", "yarn", "yarn")
    if kind is None:
        return None
    scaling = {"rope_type": kind, "factor": pick(2.0, 8.0)}
    if kind == "llama3":
        scaling |= {"low_freq_factor": pick(0.5, 1.0), "high_freq_factor": 4.0}
    if kind != "linear":
        scaling |= {"original_max_position_embeddings": pick(8, 16, 32)}
    if kind == "yarn":
        scaling |= pick({}, {"attention_factor": 1.3}, {"mscale": 0.7, "mscale_all_dim": 1.2})
        scaling |= pick({}, {"beta_fast": 4.0, "beta_slow": 0.5}) | (pick({}, {"truncate": False}) if truncate else {})
    return scaling


HEADS = ("CausalLM", "SequenceClassification", "ImageTextToText")


def _heads(kind):
    """Return the kinds of models of a family."""
    return HEADS[2:] if kind.removesuffix("Config") in TOWERS else HEADS[:2]


# --- in the environment of a version: python -m tests.models.parity make|check FOLDER ---------------------------


def make(folder, seed, count):
    """Write the models of transformers, their logits and their scores."""
    import torch
    import transformers

    for number in range(count):
        kind, fields = draw(seed, number)
        for head in _heads(kind):
            torch.manual_seed(number)
            config = getattr(transformers, kind)(**fields, **({"num_labels": 1} if head == HEADS[1] else {}))
            model = getattr(transformers, f"AutoModelFor{head}").from_config(config, attn_implementation="eager")
            with torch.no_grad():
                for parameter in model.float().parameters():
                    scale = 0.3 if parameter.ndim == 1 else parameter.shape[-1] ** -0.5
                    scale = parameter[0].numel() ** -0.5 if parameter.ndim > 3 else scale
                    parameter.normal_(std=scale).add_(0.5 * (parameter.ndim == 1))
            model.tie_weights()
            model.save_pretrained(folder / f"{number}-{head}")
            np.save(folder / f"{number}-{head}.npy", _logits(model, *pictures(kind, fields)))


def check(folder, seed, count):
    """Read the exported models; write the largest differences of their logits and scores, or what is missing."""
    import transformers

    results = {}
    for path in sorted(folder.glob("*-export")):
        number, head, _ = path.name.split("-")
        auto = getattr(transformers, f"AutoModelFor{head}")
        try:
            model, info = auto.from_pretrained(
                path, dtype="float32", attn_implementation="eager", output_loading_info=True
            )
        except (RuntimeError, ValueError) as error:
            results[path.name] = f"not loaded: {str(error).splitlines()[-1].strip()[:80]}"
            continue
        problems = {key: sorted(map(str, names)) for key, names in info.items() if names}
        z = _logits(model, *pictures(*draw(seed, int(number))))
        difference = np.abs(z - np.load(str(path).removesuffix("-export") + ".npy")).max()
        results[path.name] = str(problems) if problems else float(difference)
    (folder / "export.json").write_text(json.dumps(results))


def _logits(model, token, image):
    """Return the logits [rows, ...] of a model, row by row: several rows need an id for padding."""
    import torch

    rows = []
    for i, row in enumerate(torch.tensor(token, dtype=torch.long)):
        seen = {} if image is None else reference.pixels(model.config, row[None], image[i : i + 1])
        with torch.no_grad():
            rows.append(model.eval()(row[None], use_cache=False, **seen).logits.numpy())
    return np.concatenate(rows)


# --- here ------------------------------------------------------------------------------------------------


def ours(folder, seed, count):
    """Read the models of transformers and export them; return the largest differences, or an error, by name."""
    import jax
    import jax.numpy as jnp

    from rljax import models
    from rljax.models.checkpoints import families, weights

    @functools.cache
    def compiled(architecture):
        model = models.build(architecture)

        def run(params, token, image):
            hidden = model.apply(params, token, jnp.ones(token.shape), image)
            return (
                model.scalar(params, hidden)[:, -1:]
                if architecture.output == "scalar"
                else model.logits(params, hidden)
            )

        return jax.jit(run)

    results = {}
    for number in range(count):
        inputs = pictures(*draw(seed, number))
        for head in _heads(draw(seed, number)[0]):
            output, path = "scalar" if head == HEADS[1] else "logits", folder / f"{number}-{head}"
            try:
                fields = families.read(weights.config(str(path)))
                if inputs[1] is not None:
                    fields["vision"] |= {"pixels": inputs[1].shape[2], "tokens": TOKENS}
                architecture = models.Architecture(**fields, output=output)
                params = weights.load(str(path), architecture)
                difference = np.abs(compiled(architecture)(params, *inputs) - np.load(f"{path}.npy")).max()
                results[path.name] = float(difference)
                like = "" if inputs[1] is None else str(path)
                weights.save(f"{path}-export", architecture, params, like=like)
            except ValueError as error:
                results[path.name] = str(error)
    return results


def environment(folder, version):
    """Return the Python of a virtual environment with a version of transformers, created if it is not there."""
    path = folder / f"environment{version}"
    python = path / "bin" / "python"
    if not python.exists():
        print(f"creating {path}", flush=True)
        venv.create(path, with_pip=True)
        packages = ["torch==2.13.0", VERSIONS[version], "numpy", "safetensors"]
        subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    return python


def _step(python, arguments, name):
    quiet = {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1", "PYTHONWARNINGS": "ignore"}
    subprocess.run([python, "-m", "tests.models.parity", name, *arguments], check=True, env={**os.environ, **quiet})


def compare(folder, seed, count):
    """Compare every architecture with both versions; print a line for each and return whether all agree."""
    largest, failures = {}, 0
    for version in VERSIONS:
        python = environment(folder, version)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            step = functools.partial(_step, python, ["--folder", work, "--seed", str(seed), "--count", str(count)])
            step("make")
            read = ours(pathlib.Path(work), seed, count)
            step("check")
            export = json.loads((pathlib.Path(work) / "export.json").read_text())
        for number in range(count):
            kind, fields = draw(seed, number)
            heads = [f"{number}-{head}" for head in _heads(kind)]
            values = [read[head] for head in heads] + [export.get(f"{head}-export", "not exported") for head in heads]
            bad = [value for value in values if isinstance(value, str) or value > TOLERANCE]
            failures += bool(bad)
            names = ("read", "read score", "export", "export score")[:: 3 - len(heads)]
            text = ", ".join(
                f"{name} {value if isinstance(value, str) else f'{value:.1e}'}"
                for name, value in zip(names, values, strict=True)
            )
            scaling = (fields.get("text_config", fields)["rope_scaling"] or {}).get("rope_type", "default")
            print(f"{version} {number:3d} {kind.removesuffix('Config'):10} {scaling:8} {text}{'  FAIL' if bad else ''}")
            for name, value in zip(names, values, strict=True):
                if not isinstance(value, str):
                    largest[version, name] = max(value, largest.get((version, name), 0.0))
    for (version, name), value in largest.items():
        print(f"transformers {version}, {name}: largest difference {value:.1e}")
    print(f"{failures} of {count * len(VERSIONS)} differ by more than {TOLERANCE:.0e}")
    return not failures


def main():
    """Run one step in an environment, or everything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("step", nargs="?", choices=["make", "check"], help="what an environment runs")
    parser.add_argument("--folder", type=pathlib.Path, default=None, help="of the environments; default: temporary")
    parser.add_argument("--count", type=int, default=42, help="number of architectures")
    parser.add_argument("--seed", type=int, default=0, help="of the draw")
    args = parser.parse_args()
    if args.step:
        {"make": make, "check": check}[args.step](args.folder, args.seed, args.count)
        return 0
    if args.folder is None:
        with tempfile.TemporaryDirectory() as folder:
            return not compare(pathlib.Path(folder), args.seed, args.count)
    args.folder.mkdir(parents=True, exist_ok=True)
    return not compare(args.folder.resolve(), args.seed, args.count)


if __name__ == "__main__":
    sys.exit(main())
