"""Read and write public checkpoints: a folder of config.json and safetensors, from and to parameters on a mesh.

Reading holds one parameter in host memory at a time; writing holds the tensors of one file.
"""

import json
import math
import re
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from etils import epath

from rljax.data import documents, storage
from rljax.models import adapters, parameters
from rljax.models.architectures import Architecture
from rljax.models.checkpoints import families, tensors, vision
from rljax.types import Key, Tree

_COPIED = ("tokenizer", "chat_template", "special_tokens", "vocab", "merges", "generation_config", "added_tokens")
# matrices that are stored as they are read: [in, out], or one row for each number
_AS_THEY_ARE = (
    "model.embed_tokens.weight",
    "score.weight",
    "vision_tower.embeddings.position_embedding.weight",
    "multi_modal_projector.mm_input_projection_weight",
)
# dimensions of a convolution between its outputs and its sides: colors, frames
_PATCH = {"embeddings.patch_embedding.weight": (3,), "patch_embed.proj.weight": (3, 2)}
_JOINED = re.compile(r"(visual\..*\.attn\.)(qkv|[qkv])(\.weight|\.bias)")  # query, key and value are one tensor


def config(folder: str) -> dict[str, Any]:
    """Return the config.json of a folder.

    Raises:
      ValueError: the folder has none, or it is not a JSON object.
    """
    try:
        return documents.read(epath.Path(folder) / "config.json")
    except FileNotFoundError:
        raise ValueError(f"weights {folder!r}: no config.json in the folder") from None


def dtype(folder: str) -> str:
    """Return the dtype of most of a folder's parameters: "float32" or "bfloat16"."""
    counts = {"BF16": 0, "F32": 0}
    for tensor in tensors.index(folder).values():
        counts[tensor.dtype if tensor.dtype in counts else "F32"] += math.prod(tensor.shape)
    return "bfloat16" if counts["BF16"] > counts["F32"] else "float32"


def load(folder: str, architecture: Architecture, shardings: Tree | None = None, key: Key | None = None) -> Tree:
    """Read the parameters of a folder onto devices, in ``param_dtype``.

    Each host reads the shards of its devices, one parameter at a time. A scalar head that the folder lacks is 0;
    adapters keep the values of ``init``.

    Args:
      folder: local or gs://.
      architecture: of the parameters.
      shardings: a tree like the parameters; None: everything on the first device.
      key: of the adapters; None: the key of seed 0.

    Returns:
      The tree of parameters.

    Raises:
      ValueError: the folder does not match the architecture (see ``check``), or a value is not finite.
    """
    a = architecture
    shapes, stored = _shapes(a), check(folder, a)
    if shardings is None:
        first = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        shardings = jax.tree.map(lambda _: first, shapes)

    def fill(path: Any, leaf: jax.ShapeDtypeStruct, sharding: jax.sharding.Sharding) -> jax.Array | None:
        if adapters.is_adapter(path):
            return None
        name = families.names(a)[tuple(key.key for key in path)]
        return _place(name, leaf, sharding, stored)

    params = jax.tree_util.tree_map_with_path(fill, shapes, shardings)
    if not a.adapted:
        return params
    fresh = adapters.fresh(a, jax.random.key(0) if key is None else key)
    return adapters.joined(jax.tree.map(jax.device_put, fresh, adapters.matrices(shardings)), params)


def _named_here(stored: dict[str, tensors.Tensor]) -> dict[str, tensors.Tensor]:
    """Return the tensors without the prefixes that multimodal checkpoints have."""
    kept = {}
    for name, tensor in stored.items():
        if name.endswith("rotary_emb.inv_freq"):
            continue
        short = vision.short(name)
        if short in kept:
            raise ValueError(f"{tensor.path}: {name[:100]} is the same parameter as another tensor, {short[:100]}")
        kept[short] = tensor
        joined = _JOINED.fullmatch(short)
        if joined and joined[2] == "qkv" and tensors.floating(tensor) and tensor.shape[0] % 3 == 0:
            for letter, part in zip("qkv", kept.pop(short).parts(3), strict=True):
                kept[f"{joined[1]}{letter}{joined[3]}"] = part
    return kept


def _leading(name: str) -> int:
    """Return how many leading dimensions of a parameter count its tensors: layers, experts."""
    return ("{layer}" in name) + ("{expert}" in name)


def _pieces(name: str, shape: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], str, tuple[int, ...]]]:
    """Yield the tensors of a parameter: (leading indices, name, shape of that part of the parameter)."""
    lead = _leading(name)
    for index in np.ndindex(*shape[:lead]):
        yield index, name.format(**dict(zip(("layer", "expert"), index, strict=False))), shape[lead:]


def _transposed(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether a part of a parameter of ``shape`` is stored transposed: most matrices."""
    return len(shape) > 1 and name not in _AS_THEY_ARE and not name.endswith(".bias")


def _stored(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape in which a part of a parameter of ``shape`` is stored: [out, in], or the same."""
    if name == "score.weight":
        return (1, *shape) if len(shape) == 1 else shape
    if not _transposed(name, shape):
        return (int(np.prod(shape)),) if name.endswith(".bias") else shape
    for end, inner in _PATCH.items():
        if name.endswith(end):
            side = math.isqrt(shape[0] // math.prod(inner))
            return (shape[1], *inner, side, side)
    split = len(shape) - 1 if name.endswith(("o_proj.weight", "out_proj.weight", "attn.proj.weight")) else 1
    return int(np.prod(shape[split:])), int(np.prod(shape[:split]))


def _view(name: str, tensor: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return a view of a stored tensor with the ``shape`` of its part of the parameter."""
    return (tensor.reshape(len(tensor), -1).T if _transposed(name, shape) else tensor).reshape(shape)


def _finite(x: np.ndarray) -> bool:
    """Return whether all values are finite, by their bits: ``np.isfinite`` on bfloat16 takes as long as the copy."""
    signed, unsigned, infinity = f"i{x.itemsize}", f"u{x.itemsize}", np.array(np.inf, x.dtype)
    above = x.view(signed).max(initial=0) >= infinity.view(signed)  # of numbers without sign
    return not above and bool(x.view(unsigned).max(initial=0) < (-infinity).view(unsigned))


def _shapes(architecture: Architecture) -> Tree:
    return jax.eval_shape(lambda: parameters.init(architecture, jax.random.key(0)))


def check(folder: str, architecture: Architecture) -> dict[str, tensors.Tensor]:
    """Return the tensors of a folder, those that ``load`` reads.

    Raises:
      ValueError: no public model has such a vision tower; tensors are missing, unexpected or of another shape (they
        are named); or a file is truncated.
    """
    a, stored = architecture, _named_here(tensors.index(folder))
    if a.vision.layers and not vision.names(a):
        raise ValueError(f"weights {folder!r}: no public model has a vision tower of vision.form={a.vision.form!r}")
    expected: dict[str, tuple[int, ...]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(_shapes(a)):
        if adapters.is_adapter(path):
            continue
        name = families.names(a)[tuple(key.key for key in path)]
        count = math.prod(leaf.shape[: _leading(name)])
        if count > 2 * len(stored) + 10_000:  # config.json may claim any number
            described = f"num_hidden_layers={a.layers}" + f", num_experts={a.experts}" * bool(a.experts)
            raise ValueError(f"weights {folder!r}: {len(stored)} tensors, but its config.json describes {described}")
        expected |= {part: _stored(part, shape) for _, part, shape in _pieces(name, leaf.shape)}
    unused = {"lm_head.weight", "score.weight"}  # of the other kind of model, or a copy of the embedding
    missing = sorted(set(expected) - set(stored) - {"score.weight"})  # a new scalar head is 0
    extra = sorted(set(stored) - set(expected) - unused)
    wrong = [
        f"{name} is {stored[name].dtype} {stored[name].shape}, expected {shape}"
        + ("" if tensors.floating(stored[name]) else " of a floating type")
        for name, shape in expected.items()
        if name in stored
        and (
            not tensors.floating(stored[name])
            or stored[name].shape not in (shape, shape[1:] if name == "score.weight" else shape)  # [D]: older files
        )
    ]
    problems = [f"missing {_few(missing)}"] * bool(missing) + [f"not expected {_few(extra)}"] * bool(extra)
    problems += [_few(wrong)] * bool(wrong)
    if problems:
        raise ValueError(f"weights {folder!r}: {'; '.join(problems)}")
    return stored


def _few(names: list[str]) -> str:
    return ", ".join(name[:200] for name in names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _place(
    name: str, leaf: jax.ShapeDtypeStruct, sharding: jax.sharding.Sharding, stored: dict[str, tensors.Tensor]
) -> jax.Array:
    """Read one parameter: each of its tensors once, into the shards of this host's devices."""
    bounds = {
        device: tuple(s.indices(n)[:2] for s, n in zip(index or (), leaf.shape, strict=True))
        for device, index in sharding.addressable_devices_indices_map(leaf.shape).items()
    }
    # devices with the same shard share one array
    pieces = {b: np.zeros([stop - start for start, stop in b], leaf.dtype) for b in set(bounds.values())}
    for index, part, shape in _pieces(name, leaf.shape):
        if part not in stored:
            continue  # a new scalar head
        tensor = stored[part].read()
        if not _finite(tensor):
            raise ValueError(f"{stored[part].path}: {part} has values that are not finite")
        whole = _view(part, tensor, shape)
        for b, piece in pieces.items():
            if all(start <= i < stop for i, (start, stop) in zip(index, b, strict=False)):
                local = tuple(i - start for i, (start, _) in zip(index, b, strict=False))
                piece[local] = whole[tuple(slice(*edges) for edges in b[len(index) :])]
    arrays = [jax.device_put(pieces[b], device) for device, b in bounds.items()]
    return jax.make_array_from_single_device_arrays(leaf.shape, sharding, arrays)


def save(
    folder: str,
    architecture: Architecture,
    params: Tree,
    *,
    family: str = "",
    dtype: str = "",
    like: str = "",
    tokenizer: Mapping[str, bytes] | None = None,
    shard_bytes: int = 2 << 30,
) -> None:
    """Write a folder that transformers and ``load`` can read; it appears complete or not at all.

    Args:
      folder: the folder to write, local or gs://; it must not exist.
      architecture: of the parameters; adapters are merged into the matrices they adapt.
      params: the parameters to write.
      family: one of ``families.FAMILIES``; "": the first that can express the architecture.
      dtype: of the tensors; "": the parameters' dtype.
      like: a folder whose tokenizer files are copied, and whose config.json provides the fields that the
        architecture does not determine; "": none.
      tokenizer: files to write if ``like`` is "".
      shard_bytes: about the most bytes of a file.

    Raises:
      ValueError: the folder exists, a file of ``like`` cannot be read, or no family can express the architecture.
    """
    target = epath.Path(folder)
    if storage.exists(target):
        raise ValueError(f"weights {folder!r}: the folder exists already")
    architecture, params = adapters.merged(architecture, params)
    model = config(like) if like else {}
    names = [name for name in storage.names(like) if name.startswith(_COPIED)] if like else []
    copied = {name: documents.content(epath.Path(like) / name) for name in names} if like else tokenizer or {}
    kind = family or families.kind(model)
    fields = families.write(architecture, kind if kind in families.FAMILIES else "")
    stored = dtype or str(params["embedding"].dtype)
    kept = families.kept(model)
    merged = [key for key, value in fields.items() if isinstance(value, dict) and "label" not in key]
    fields |= {key: (kept.get(key) or {}) | fields[key] for key in merged}  # labels follow from the head alone
    fields = {**kept, **fields, "dtype": stored, "torch_dtype": stored}  # transformers 5, 4
    remote = storage.remote(folder)  # a remote folder cannot be renamed atomically: config.json is written last
    draft = target if remote else target.parent / f"{target.name}.{uuid.uuid4().hex[:8]}.partial"
    draft.mkdir(parents=True)
    try:
        tensors.write(draft, _named(architecture, params, dtype), shard_bytes)
        for name, content in copied.items():
            storage.write(draft / name, content)
        storage.write(draft / "config.json", json.dumps(fields, indent=2))
        if not remote:
            draft.rename(target)
    except BaseException:
        draft.rmtree()
        raise


def _named(architecture: Architecture, params: Tree, dtype: str) -> Iterator[tuple[str, np.ndarray]]:
    form, waiting = architecture.vision.form if architecture.vision.layers else "", {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = families.names(architecture)[tuple(key.key for key in path)]
        for index, part, shape in _pieces(name, leaf.shape):
            x = np.asarray(leaf[index] if index else leaf)
            stored = _stored(part, shape)
            if _transposed(part, shape):
                x = x.reshape(-1, stored[0]).T
            name, x = vision.published(form, part), x.reshape(stored)
            if joined := _JOINED.fullmatch(name):
                name = f"{joined[1]}qkv{joined[3]}"
                waiting.setdefault(name, {})[joined[2]] = x
                if len(waiting[name]) < 3:
                    continue
                x = np.concatenate([waiting[name].pop(letter) for letter in "qkv"])
            yield name, np.ascontiguousarray(x.astype(dtype or x.dtype))
