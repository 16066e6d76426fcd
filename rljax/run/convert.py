"""Copy a policy between a public checkpoint and a run: ``python -m rljax convert``.

    python -m rljax convert Qwen2.5-0.5B                          # print the architecture; check all tensors
    python -m rljax convert runs/first --target out               # write a run's policy and tokenizer for transformers

The source is a folder with config.json and safetensors, or the work directory of a run; both may be on gs://. A run's
tokenizer is written as the files that it was read from, so transformers reads it if these are tokenizer.json or a
SentencePiece model; rljax reads every kind. Training from a public checkpoint, or from such a folder, needs no
conversion: ``config.model.weights`` names the folder.
"""

import dataclasses
import textwrap
from collections.abc import Sequence
from typing import Any

import jax
from absl import flags

from rljax.data import storage, tokenizers
from rljax.host import backends
from rljax.language import messages
from rljax.models import architectures
from rljax.models.checkpoints import families, weights
from rljax.types import Tree

_SHAPE = ("vocabulary", "layers", "width", "heads", "kv_heads", "hidden")  # printed also where it is the default

FLAGS = flags.FLAGS


def _read(
    source: str, step: int | None, dtype: str, allow_code: Sequence[str], module: str = "policy"
) -> tuple[architectures.Architecture, Tree, dict[str, bytes]]:
    """Return architecture and parameters of a public checkpoint or of a run's module, and a run's tokenizer files."""
    if not storage.is_dir(storage.path(source) / "checkpoints"):
        config = weights.config(source)
        try:
            fields: dict[str, Any] = families.read(config)
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from None
        architecture = architectures.Architecture(**fields, param_dtype=dtype or weights.dtype(source))  # type: ignore
        return architecture, weights.load(source, architecture), {}
    from rljax.run.evaluation import loading

    program, params, _ = loading.load(source, step=step, allow_code=allow_code, module=module)
    if program.settings.model.kind != "transformer":
        raise ValueError(f"{source}: a run of a control world, whose network has no public form")
    return program.model(module).architecture, params, tokenizers.files(program.tokenizer)


def define_flags() -> None:
    """Define the flags of this command."""
    flags.DEFINE_string("target", "", "Folder to write, which must not exist yet; default: only describe the source.")
    flags.DEFINE_string("like", "", "Folder whose tokenizer files are copied to the target; default: a run's own.")
    flags.DEFINE_string("family", "", f"Family to write: {', '.join(families.FAMILIES)}; default: the first that fits.")
    flags.DEFINE_enum("dtype", "", ["", "float32", "bfloat16"], "Type of the written tensors; default: unchanged.")
    flags.DEFINE_string("module", "policy", "Module of a run, such as 'reward'.")
    flags.DEFINE_integer("step", None, "Checkpoint of a run; default: the newest.")
    flags.DEFINE_list("allow_code", [], "Packages outside rljax whose code a run's config may name.")


def main(argv: Sequence[str]) -> None:
    """Read a source, print its architecture, and write it to --target if set."""
    f, source = FLAGS, messages.argument(argv, "a folder of a public checkpoint, or the work directory of a run")
    backends.start()
    architecture, params, tokenizer = _read(source, f.step, f.dtype, f.allow_code, f.module)
    count = sum(x.size for x in jax.tree.leaves(params))
    print(f"{source}: {count:,} parameters in {architecture.param_dtype}")
    plain = type(architecture)()
    fields = {f.name: getattr(architecture, f.name) for f in dataclasses.fields(architecture)}
    shown = [f"{k}={v!r}" for k, v in fields.items() if k in _SHAPE or v != getattr(plain, k)]
    print(textwrap.fill(", ".join(shown), 100, initial_indent="  ", subsequent_indent="  "))
    if f.target:
        weights.save(f.target, architecture, params, family=f.family, dtype=f.dtype, like=f.like, tokenizer=tokenizer)
        print(f"wrote {f.target}")
