"""Members: runs that differ in their seed or in numbers, computed by one program over several devices.

Arrays of members have them along the first axis, which is split over the devices. A device computes ``width`` of its
members at a time, by ``vmap``, and one such part after another. Devices exchange nothing.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from rljax import sampling, types
from rljax.training import phases, states, steps

AXIS = "member"
Values = Mapping[str, types.Array]  # numbers in which members differ, by field


def make_mesh(devices: Sequence[Any]) -> Mesh:
    """Return a mesh of one axis, over which members are split."""
    return Mesh(np.asarray(devices), (AXIS,), axis_types=(AxisType.Auto,))


def sharding(mesh: Mesh) -> NamedSharding:
    """Return the sharding of arrays of members."""
    return NamedSharding(mesh, PartitionSpec(AXIS))


def each(function: Callable[..., Any], mesh: Mesh, width: int, donate: bool = False) -> Any:
    """Return the compiled function ``(common, *members)`` that applies a function to every member.

    Args:
      function: ``(common, *member) -> tree``; ``common`` is the same for all members.
      mesh: from ``make_mesh``.
      width: members that a device computes at a time.
      donate: whether the first argument of members may be overwritten.

    Returns:
      The function; its other arguments and its results are trees of arrays ``[M, ...]``.
    """

    def of_device(common: Any, *members: Any) -> Any:
        batch = width if width > 1 else None  # without, the loop's body is the function itself, as for one run alone
        return jax.lax.map(lambda member: function(common, *member), members, batch_size=batch)

    whole, split = PartitionSpec(), PartitionSpec(AXIS)

    def run(common: Any, *members: Any) -> Any:
        specs = (whole, *(split for _ in members))
        return jax.shard_map(of_device, mesh=mesh, in_specs=specs, out_specs=split, check_vma=False)(common, *members)

    return jax.jit(run, donate_argnums=(1,) if donate else ())


@dataclasses.dataclass(frozen=True)
class Functions:
    """What is computed for a member in a phase; each is a function for ``each``.

    Attributes:
      step: the functions of the phase for a run alone, of equal structure.
      traced: ``values -> Setup``, the phase with numbers of a member.
    """

    step: steps.Step
    traced: Callable[[Values], phases.Setup]

    def begin(
        self,
        common: Mapping[str, types.Tree],
        initial: Mapping[str, types.Tree],
        previous: types.TrainState | None,
        key: types.Key,
        values: Values,
    ) -> types.TrainState:
        """Return the state at the start of the phase; see ``states.begin``.

        ``common`` are initial parameters of all members, ``initial`` those of a member, which come before them.
        """
        return states.begin(self.traced(values), self.step.carried, previous, key, {**common, **initial})

    def advance(
        self, common: None, state: types.TrainState, key: types.Key, values: Values
    ) -> tuple[types.TrainState, dict[str, types.Array]]:
        """Return the state after one step, and its metrics."""
        del common
        return steps.advance(self.traced(values), state, key)

    def complete(
        self,
        common: tuple[types.Array, types.Prompts],
        params: types.Tree,
        keys: types.Key,
        values: Values,
        *,
        samples: int,
        changes: Mapping[str, Any],
    ) -> tuple[types.Array, ...]:
        """Return completions of held-out prompts and their verdicts.

        Args:
          common: the rows' prompts by index ``[B]``, and the P prompts.
          params: the policy's.
          keys: ``[B]``, of the rows.
          values: numbers of the member.
          samples: completions of each prompt.
          changes: fields of the sampler's settings that are replaced.

        Returns:
          Outcome ``[B]``, reward ``[B]``, token ``[B, T]``, mask ``[B, T]`` and length ``[B]``.
        """
        rows, prompts = common
        setup = self.traced(values)
        sampler = dataclasses.replace(setup.settings.sampler, **changes)
        length = setup.task.completion_length
        out = sampling.generate(
            setup.decoder, params, prompts, keys, sampler, setup.ends, samples=samples, length=length
        )
        verdict = setup.verify(rows, "heldout", out.token, out.mask)
        return verdict.outcome, verdict.reward, out.token, out.mask, out.length
