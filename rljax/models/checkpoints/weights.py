"""Public checkpoints in and out: a folder of config.json and safetensors, to and from parameters on a mesh.

One parameter is in the host's memory at a time when reading, one file's worth when writing.
"""

import json
import math
import uuid
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from etils import epath

from rljax.data import storage
from rljax.models import adapters
from rljax.models import architecture as architectures
from rljax.models.architecture import Architecture
from rljax.models.checkpoints import families, tensors
from rljax.types import Key, Tree

_BESIDE = ("tokenizer", "chat_template", "special_tokens", "vocab", "merges", "generation_config", "added_tokens")
# parts of multimodal checkpoints that are not the decoder, and buffers that older versions saved
_IGNORED = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")


def config(folder: str) -> dict[str, Any]:
    """Return a folder's config.json.

    Raises:
      ValueError: there is none, or it is not JSON.
    """
    path = epath.Path(folder) / "config.json"
    if not storage.exists(path):
        raise ValueError(f"weights {folder!r}: no config.json there")
    try:
        return json.loads(storage.read(path))
    except ValueError as error:
        raise ValueError(f"{path}: not JSON: {error}") from None


def dtype(folder: str) -> str:
    """Return the type of a folder's tensors that hold the most numbers: "float32" or "bfloat16"."""
    counts = {"BF16": 0, "F32": 0}
    for tensor in tensors.index(folder).values():
        counts[tensor.dtype if tensor.dtype in counts else "F32"] += math.prod(tensor.shape)
    return "bfloat16" if counts["BF16"] > counts["F32"] else "float32"


def load(folder: str, architecture: Architecture, shardings: Tree | None = None, key: Key | None = None) -> Tree:
    """Return the parameters of a folder in ``param_dtype``, laid out by ``shardings`` (None: on the first device).

    Reads what each device of this host holds, a parameter at a time. A "scalar" head that is not there stays 0;
    adapters are those of ``init`` under ``key`` (None: that of seed 0).

    Raises:
      ValueError: what ``check`` finds.
    """
    a = architecture
    shapes, found = _shapes(a), check(folder, a)
    if shardings is None:
        one = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        shardings = jax.tree.map(lambda _: one, shapes)

    def fill(path: Any, leaf: jax.ShapeDtypeStruct, sharding: jax.sharding.Sharding) -> jax.Array | None:
        if adapters.names(path):
            return None
        name = families.names(a)[tuple(key.key for key in path)]
        return _place(name, leaf, sharding, found)

    read = jax.tree_util.tree_map_with_path(fill, shapes, shardings)
    if not a.adapted:
        return read
    fresh = adapters.fresh(a, jax.random.key(0) if key is None else key)
    return adapters.joined(jax.tree.map(jax.device_put, fresh, adapters.matrices(shardings)), read)


def _decoder(found: dict[str, tensors.Tensor]) -> dict[str, tensors.Tensor]:
    """Leave out what is not the decoder, and the prefixes of multimodal checkpoints."""
    kept = {}
    for name, tensor in found.items():
        if name.startswith(_IGNORED) or name.endswith("rotary_emb.inv_freq"):
            continue
        kept[name.removeprefix("language_model.").replace("model.language_model.", "model.", 1)] = tensor
    return kept


def _pieces(name: str, shape: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], str, tuple[int, ...]]]:
    """Yield what a parameter is read from: (leading indices, tensor, shape of that part of the parameter)."""
    lead = ("{layer}" in name) + ("{expert}" in name)
    for at in np.ndindex(*shape[:lead]):
        yield at, name.format(**dict(zip(("layer", "expert"), at, strict=False))), shape[lead:]


def _turned(name: str, shape: tuple[int, ...]) -> bool:
    """Tell whether a part of a parameter of ``shape`` is stored transposed: a matrix that is no embedding."""
    return len(shape) > 1 and name != "model.embed_tokens.weight" and not name.endswith(".bias")


def _stored(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of the tensor that a part of a parameter of ``shape`` is stored as: [out, in], or the same."""
    if not _turned(name, shape):
        return (int(np.prod(shape)),) if name.endswith(".bias") else shape
    split = len(shape) - 1 if name.endswith("o_proj.weight") else 1
    return int(np.prod(shape[split:])), int(np.prod(shape[:split]))


def _ours(name: str, tensor: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return a view of a stored tensor as the part of a parameter of ``shape`` that it is."""
    return (tensor.T if _turned(name, shape) else tensor).reshape(shape)


def _shapes(architecture: Architecture) -> Tree:
    return jax.eval_shape(lambda: architectures.init(architecture, jax.random.key(0)))


def check(folder: str, architecture: Architecture) -> dict[str, tensors.Tensor]:
    """Return the decoder's tensors of a folder, which ``load`` would read.

    Raises:
      ValueError: a tensor is missing, in excess, of another shape, or its file cut short; all of them are named.
    """
    a, found = architecture, _decoder(tensors.index(folder))
    wanted: dict[str, tuple[int, ...]] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(_shapes(a)):
        if adapters.names(path):
            continue
        name = families.names(a)[tuple(key.key for key in path)]
        wanted |= {one: _stored(one, part) for _, one, part in _pieces(name, leaf.shape)}
    spare = {"lm_head.weight", "score.weight"}  # of the other kind of model, or the embedding once more
    missing = sorted(set(wanted) - set(found) - {"score.weight"})  # a head of our own starts at 0
    extra = sorted(set(found) - set(wanted) - spare)
    wrong = [
        f"{name} is {found[name].dtype} {found[name].shape}, expected {shape}"
        for name, shape in wanted.items()
        if name in found
        and (
            not tensors.floating(found[name])
            or np.prod(found[name].shape) != np.prod(shape)
            or (len(shape) > 1 and found[name].shape != shape)
        )
    ]
    said = [f"missing {_few(missing)}"] * bool(missing) + [f"not expected {_few(extra)}"] * bool(extra)
    said += [_few(wrong)] * bool(wrong)
    if said:
        raise ValueError(f"weights {folder!r}: {'; '.join(said)}")
    return found


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _place(
    name: str, leaf: jax.ShapeDtypeStruct, sharding: jax.sharding.Sharding, found: dict[str, tensors.Tensor]
) -> jax.Array:
    """Read one parameter: every part once, into the piece of each of this host's devices."""
    bounds = {
        device: tuple(s.indices(n)[:2] for s, n in zip(index or (), leaf.shape, strict=True))
        for device, index in sharding.addressable_devices_indices_map(leaf.shape).items()
    }
    # devices that hold the same share one
    pieces = {b: np.zeros([stop - start for start, stop in b], leaf.dtype) for b in set(bounds.values())}
    for at, one, shape in _pieces(name, leaf.shape):
        if one not in found:
            continue  # a head of our own
        whole = _ours(one, found[one].read(), shape)
        for b, piece in pieces.items():
            if all(start <= i < stop for i, (start, stop) in zip(at, b, strict=False)):
                here = tuple(i - start for i, (start, _) in zip(at, b, strict=False))
                piece[here] = whole[tuple(slice(*edges) for edges in b[len(at) :])]
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
    shard_bytes: int = 2 << 30,
) -> None:
    """Write a folder that transformers loads, and ``load`` reads back; it appears whole or not at all.

    Args:
      folder: to write, which must not be there yet.
      architecture: of the parameters; adapters are merged into what they adapt.
      params: to write.
      family: one of ``families.FAMILIES``; "": the first that can say the architecture.
      dtype: to write them in; "": as they are.
      like: a folder whose tokenizer's files, and fields of config.json that do not contradict, go along.
      shard_bytes: of a file, about.

    Raises:
      ValueError: the folder is there, or no family can say the architecture.
    """
    target = epath.Path(folder)
    if storage.exists(target):
        raise ValueError(f"weights {folder!r}: there is something already")
    architecture, params = adapters.merged(architecture, params)
    kept = config(like) if like else {}
    kind = family or families.kind(kept)
    said = families.write(architecture, kind if kind in families.FAMILIES else "")
    said = {**(kept if kept.get("model_type") == said["model_type"] else {}), **said}
    said["dtype"] = dtype or str(params["embedding"].dtype)
    remote = storage.remote(
        folder
    )  # no folder can be renamed there at once: config.json, without which none is read, is last
    draft = target if remote else target.parent / f"{target.name}.{uuid.uuid4().hex[:8]}.partial"
    draft.mkdir(parents=True)
    try:
        tensors.write(draft, _named(architecture, params, dtype), shard_bytes)
        for name in storage.names(like) if like else ():
            if name.startswith(_BESIDE):
                storage.write(draft / name, storage.read(epath.Path(like) / name))
        storage.write(draft / "config.json", json.dumps(said, indent=2))
        if not remote:
            draft.rename(target)
    except BaseException:
        draft.rmtree()
        raise


def _named(architecture: Architecture, params: Tree, dtype: str) -> Iterator[tuple[str, np.ndarray]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = families.names(architecture)[tuple(key.key for key in path)]
        for at, one, shape in _pieces(name, leaf.shape):
            x = np.asarray(leaf[at] if at else leaf)
            stored = _stored(one, shape)
            x = x.reshape(stored[::-1]).T if _turned(one, shape) else x.reshape(stored)
            yield one, np.ascontiguousarray(x.astype(dtype or x.dtype))
