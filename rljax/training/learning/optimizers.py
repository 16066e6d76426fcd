"""Optimizers: optax chains, an update that skips non-finite gradients, and stochastic rounding to bfloat16.

Gradients and moments are float32 whatever the dtype of the parameters. Adam's second moment decays by a factor of
0.999 per step, a change below half the spacing of bfloat16 numbers, so it would never decay in bfloat16. To save
memory, use an optimizer with a smaller state: ``adamw(mu_dtype="bfloat16")`` rounds the first moment, ``adafactor``
stores sums over rows and columns, ``muon`` stores one moment. optax has no 8-bit states.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax
import optax.contrib
from jax import core

from rljax import types
from rljax.language import dotted, errors, messages, parse
from rljax.models import architectures

C = TypeVar("C", bound=Callable[..., Any])
Parts = Sequence[optax.GradientTransformation]
HOST = "pinned_host"  # memory kind of offloaded optimizer state
_OTHERS = {"lbfgs", "scale_by_backtracking_linesearch", "scale_by_zoom_linesearch", "sophia"}
_OTHERS |= {"differentially_private_aggregate", "dpsgd", "add_noise", "noisy_sgd"}  # the last two store a typed key
_TOWER = ("tower", "projector")  # names of parameters begin so


def build(parts: Parts, *, clip_norm: float, warmup: int) -> optax.GradientTransformation:
    """Return the chain clip by global norm | parts | linear warm-up, computed in float32.

    Args:
      parts: optax transformations, in order.
      clip_norm: maximum global norm of the gradient; 0 disables clipping.
      warmup: steps over which the update is scaled linearly from 1 / ``warmup`` to 1; 0 and 1 disable it.

    Returns:
      The transformation; its state is the chain's, initialized from float32 copies of the parameters.
    """
    clips = isinstance(clip_norm, core.Tracer) or clip_norm > 0
    clip = [optax.clip_by_global_norm(clip_norm)] if clips else []
    ramp = [optax.scale_by_schedule(optax.linear_schedule(1.0 / warmup, 1.0, warmup - 1))] if warmup > 1 else []
    inner = optax.with_extra_args_support(optax.chain(*clip, *parts, *ramp))

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> tuple[Any, Any]:
        return inner.update(wide(updates), state, wide(params), **extra)

    return optax.GradientTransformationExtraArgs(lambda params: inner.init(wide(params)), update)


def parts(text: str, field: str) -> Parts:
    """Return the calls of a text, such as "adamw(1e-3)", for ``build``; errors name ``field``."""
    named = parse.many(text, parse.Registry("optimizer", functions()), field)
    if not named or not all(isinstance(p, optax.GradientTransformation) for p in named):
        raise ValueError(f"{field}={messages.shown(text)}: must be a chain of optax gradient transformations.")
    return named


def apart(main: Parts, tower: Parts) -> optax.GradientTransformation:
    """Return a transformation that is ``tower`` on a vision tower and its projection, and ``main`` on the rest."""

    def labels(params: types.Tree) -> types.Tree:
        def label(path: Any, leaf: Any) -> str:
            del leaf
            return "tower" if any(str(key.key).startswith(_TOWER) for key in path) else "main"

        return jax.tree_util.tree_map_with_path(label, params)

    return optax.multi_transform({"main": optax.chain(*main), "tower": optax.chain(*tower)}, labels)


def optimizer(function: C) -> C:
    """Mark a function that returns a gradient transformation, so that a config can name it by its dotted path."""
    return dotted.mark(function, "optimizer")


@functools.cache
def functions() -> dict[str, Callable[..., Any]]:
    """Return what an optimizer's text may name: ``muon``, and functions of optax and optax.contrib.

    These are the functions whose annotation says that they return a gradient transformation or a schedule, without
    those that would call the loss or read the gradients of single rows.
    """
    chosen = {}
    for name, function in (vars(optax.contrib) | vars(optax)).items():
        plain = function.func if isinstance(function, functools.partial) else function
        if inspect.isfunction(plain) and not name.startswith("_"):
            returned = inspect.signature(plain, eval_str=True).return_annotation
            transforms = isinstance(returned, type) and issubclass(returned, optax.GradientTransformation)
            if (transforms or returned == optax.Schedule) and name not in _OTHERS:
                chosen[name] = function
    return {**chosen, "muon": muon}


def wide(tree: types.Tree) -> types.Tree:
    """Return a tree of arrays cast to float32."""
    return jax.tree.map(lambda x: x.astype(jnp.float32), tree)


def muon(
    learning_rate: optax.ScalarOrSchedule,
    adam_learning_rate: optax.ScalarOrSchedule | None = None,
    beta: float = 0.95,
    weight_decay: float = 0.0,
    consistent_rms: float | None = None,
) -> optax.GradientTransformation:
    """Orthogonalize the momentum of the layers' matrices; Nesterov Adam for embedding, norms, biases and routers.

    Muon (Jordan 2024, kellerjordan.github.io/posts/muon). ``optax.contrib.muon`` treats every two-dimensional array as
    a matrix, which would select the embedding and none of the stacked layers; here the architecture names the
    dimensions of each matrix.

    Args:
      learning_rate: learning rate of the matrices.
      adam_learning_rate: learning rate of the other parameters; None: ``learning_rate``.
      beta: decay of the momentum.
      weight_decay: decay of the matrices, multiplied by the learning rate.
      consistent_rms: root mean square of an update; 0.2 matches AdamW (arXiv 2502.16982). None: 1 for square matrices.

    Returns:
      The optimizer.
    """
    return optax.contrib.muon(
        learning_rate,
        beta=beta,
        weight_decay=weight_decay,
        adam_learning_rate=adam_learning_rate,
        muon_weight_dimension_numbers=_sides,
        consistent_rms=consistent_rms,
    )


def _sides(params: types.Tree) -> types.Tree:
    """Return each matrix's input and output dimensions, None for other parameters; leading dimensions are a batch."""

    def one(path: Any, leaf: Any) -> optax.contrib.MuonDimensionNumbers | None:
        name = str(path[-1].key)
        matrix = name.removesuffix(architectures.ADAPTER[0]).removesuffix(architectures.ADAPTER[1])
        if matrix not in architectures.MATRICES:
            return None
        into, out = architectures.MATRICES[matrix]
        into = 1 if name.endswith(architectures.ADAPTER[1]) else into
        out = 1 if name.endswith(architectures.ADAPTER[0]) else out
        axes = tuple(range(leaf.ndim))[-into - out :]
        return optax.contrib.MuonDimensionNumbers(axes[:into], axes[into:])

    return jax.tree_util.tree_map_with_path(one, params)


def apply(
    optimizer: optax.GradientTransformation,
    gradient: types.Tree,
    loss: types.Array,
    params: types.Tree,
    state: types.Tree,
    key: types.Key | None = None,
) -> tuple[types.Tree, types.Tree, types.Array, types.Array]:
    """Update parameters unless the loss, the gradient, or the new parameters or optimizer state are not finite.

    A number of the optimizer state that was not finite before, such as a best loss of infinity, may stay so.

    Args:
      optimizer: from ``build``.
      gradient: gradient of the loss, a tree like ``params``, float32.
      loss: scalar.
      params: the trained parameters.
      state: the optimizer's state.
      key: key of the stochastic rounding of bfloat16 parameters; None rounds to nearest.

    Returns:
      (parameters, optimizer state, global norm of the gradient before clipping, whether the update was applied), the
      last two scalars. A skipped update returns parameters and optimizer state, its step count included, unchanged.
    """
    norm = optax.tree.norm(gradient)

    def updated() -> tuple[types.Tree, types.Tree]:
        with errors.inside("optimizer: update"):
            updates, new_state = optimizer.update(gradient, state, params, value=loss)
        added = optax.apply_updates(params, updates) if key is None else _added(params, updates, key)
        return added, new_state

    old, new = (params, state), updated()
    sound = jax.tree.map(lambda n, o: jnp.all(jnp.isfinite(n) | ~jnp.isfinite(o)), new, old)
    finite = jnp.isfinite(norm) & jnp.isfinite(loss) & jnp.all(jnp.stack(jax.tree.leaves(sound)))
    # An elementwise update is computed again where it is kept, which costs less than to have the old and the new arrays
    # in memory at the same time. Matrix products, such as muon's, are not repeated.
    again = "dot_general" not in str(jax.make_jaxpr(updated)())
    kept, kept_state = jax.lax.cond(finite, updated if again else lambda: new, lambda: old)
    return kept, kept_state, norm, finite


def _added(params: types.Tree, updates: types.Tree, key: types.Key) -> types.Tree:
    """Add updates in float32; round bfloat16 parameters stochastically, each with a separate key."""
    leaves, structure = jax.tree.flatten(params)
    added = []
    for i, (p, u) in enumerate(zip(leaves, structure.flatten_up_to(updates), strict=True)):
        new = p.astype(jnp.float32) + u
        added.append(rounded(new, jax.random.fold_in(key, i)) if p.dtype == jnp.bfloat16 else new.astype(p.dtype))
    return structure.unflatten(added)


def rounded(x: types.Array, key: types.Key) -> types.Array:
    """Round float32 to one of the two neighboring bfloat16 numbers so that the expectation is x (arXiv 1502.02551).

    The lower 16 bits of x, times 2^-16, are the probability of the neighbor farther from 0: a uniform 16-bit integer
    is added to the bits of x, and the lower 16 bits of the sum are truncated.
    """
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32) + jax.random.bits(key, x.shape, jnp.uint16).astype(jnp.uint32)
    kept = jax.lax.bitcast_convert_type((bits >> 16).astype(jnp.uint16), jnp.bfloat16)
    return jnp.where(jnp.isfinite(x), kept, x.astype(jnp.bfloat16))  # the addition could carry NaN into a finite number


def shardings(
    optimizer: optax.GradientTransformation, params: types.Tree, param_shardings: types.Tree, default: types.Tree
) -> types.Tree:
    """Return the shardings of the optimizer state.

    Args:
      optimizer: from ``build``.
      params: the trained parameters, or their shapes.
      param_shardings: a ``NamedSharding`` for each parameter.
      default: the sharding of arrays that belong to no parameter.

    Returns:
      A tree like the optimizer state. A leaf whose path ends in a parameter's path is sharded like the parameter if
      the shapes are equal, or differ by one dimension that was summed over; other leaves get ``default``.
    """
    by_path = {
        path: (leaf.shape, sharding)
        for (path, leaf), sharding in zip(
            jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(param_shardings), strict=True
        )
    }

    def shard(path: Any, leaf: jax.ShapeDtypeStruct) -> Any:
        ends = (path[i:] for i in range(len(path)))
        shape, sharding = next((by_path[end] for end in ends if end in by_path), ((), default))
        if leaf.shape == shape:
            return sharding
        for i in range(len(shape)):
            if leaf.shape == shape[:i] + shape[i + 1 :]:
                names = (*sharding.spec, *(None for _ in range(len(shape) - len(sharding.spec))))
                return sharding.update(spec=jax.sharding.PartitionSpec(*names[:i], *names[i + 1 :]))
        return default

    return jax.tree_util.tree_map_with_path(shard, jax.eval_shape(optimizer.init, params))
