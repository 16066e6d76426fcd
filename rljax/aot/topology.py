"""TPU kinds with their peak rates, and descriptions of slices to compile for. No TPU needs to be attached.

The rates of a chip are from Google's pages, cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e,tpu7x}, as of 2026: peak
bfloat16 compute, memory size and bandwidth, bandwidth to other chips (half of the bidirectional figure, which is what a
chip sends) and to the data-center network.
"""

import dataclasses
import os
import re
from typing import Any

from rljax.language import parse

_GB, _GIB = 10**9, 2**30


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of TPU; figures are for one chip.

    Attributes:
      name: the name in ``KINDS``.
      accelerator: libtpu's name, which ends with a number of cores or chips.
      dims: dimensions of the torus.
      flops: peak bfloat16 operations per second.
      hbm: bytes of memory.
      bandwidth: bytes per second of memory.
      ici: bytes per second that a chip sends over all its links.
      dcn: bytes per second to the data-center network, a chip's share of its host's.
      example: a topology of this kind.
      devices: jax devices of a chip.
    """

    name: str
    accelerator: str
    dims: int
    flops: float
    hbm: int
    bandwidth: float
    ici: float
    dcn: float
    example: str
    devices: int = 1

    def share(self) -> "Kind":
        """Return the figures for one jax device."""
        n = self.devices
        rates = {f: getattr(self, f) / n for f in ("flops", "bandwidth", "ici", "dcn")}
        return dataclasses.replace(self, hbm=self.hbm // n, devices=1, **rates)


KINDS = {
    # v4 is compiled as megacore, one device per chip; its page has no data-center figure, so the one of v5p is used
    "v4": Kind("v4", "v4-8", 3, 275e12, 32 * _GIB, 1200 * _GB, 300 * _GB, 6.25 * _GB, "4x4x4"),
    # 1600 Gbit/s between chips; 6.4 Tbit/s for 256 chips to the data-center network
    "v5e": Kind("v5e", "v5litepod-16", 2, 197e12, 16 * _GIB, 819 * _GB, 200 * _GB, 3.125 * _GB, "4x4"),
    # 1200 GB/s in both directions; 50 Gbit/s per chip
    "v5p": Kind("v5p", "v5p-8", 3, 459e12, 95 * _GIB, 2765 * _GB, 600 * _GB, 6.25 * _GB, "4x4x4"),
    # 800 GB/s in both directions; 25.6 Tbit/s for 256 chips
    "v6e": Kind("v6e", "v6e-16", 2, 918e12, 32 * _GIB, 1638 * _GB, 400 * _GB, 12.5 * _GB, "4x4"),
    # 1200 GB/s in both directions; 100 Gbit/s per chip; two devices
    "tpu7x": Kind("tpu7x", "tpu7x-8", 3, 2307e12, 192 * _GIB, 7380 * _GB, 600 * _GB, 12.5 * _GB, "2x2x1", 2),
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """One or several slices of a kind of TPU.

    Attributes:
      kind: the kind of TPU.
      shape: chips of a slice along each dimension of the torus.
      slices: number of slices.
      devices: jax's device descriptions.
    """

    kind: Kind
    shape: tuple[int, ...]
    slices: int
    devices: tuple[Any, ...]

    @property
    def name(self) -> str:
        """Its name, such as "v5p:4x4x4", preceded by the number of slices if there are several."""
        name = f"{self.kind.name}:{'x'.join(map(str, self.shape))}"
        return name if self.slices == 1 else f"{self.slices} x {name}"


def read(name: str) -> tuple[Kind, tuple[int, ...]]:
    """Return the kind and the shape of a name such as "v5p:4x4x4".

    Raises:
      ValueError: an unknown kind, or a shape with another number of dimensions.
    """
    label, _, size = name.partition(":")
    if label not in KINDS:
        raise ValueError(f"topology {name!r}: no TPU {label!r}.{parse.nearest(label, KINDS)}")
    kind = KINDS[label]
    form = "x".join(["N"] * kind.dims)
    if not re.fullmatch(r"\d+(x\d+)*", size) or size.count("x") != kind.dims - 1:
        raise ValueError(f"topology {name!r}: {label} has the form {label}:{form}, such as {label}:{kind.example}.")
    return kind, tuple(int(n) for n in size.split("x"))


def describe(name: str, slices: int = 1) -> Topology:
    """Return the topology of ``slices`` slices of a name such as "v5e:4x4" or "v5p:4x4x4".

    No TPU is used, and jax is set to use the CPU.

    Raises:
      ValueError: an unknown name, a number of slices below 1, or a shape that the compiler does not know.
      RuntimeError: libtpu, which contains the compiler, is not installed.
    """
    kind, shape = read(name)
    if slices < 1:
        raise ValueError(f"num_slices={slices}: must be at least 1.")
    environment(kind)
    import jax
    from jax.experimental import topologies

    jax.config.update("jax_platforms", "cpu")  # jax may have been imported before the environment was set
    options: dict[str, Any] = {} if slices == 1 else {"num_slices": slices}
    if kind.name == "v4":
        options["chip_config_name"] = "megacore"
    if all(n == 1 for n in shape):
        options["chips_per_host_bounds"] = (1, 1, 1)
    try:
        description = topologies.get_topology_desc(platform="tpu", topology_name=name, **options)
    except Exception as error:  # the type depends on the version of jax
        if "not installed" in str(error) or isinstance(error, ImportError):
            raise RuntimeError(
                "the TPU compiler is not installed. To fix, in the checkout: pip install -e '.[tpu]' (Linux on x86-64)."
            ) from error
        raise ValueError(f"topology {name!r}: the compiler rejects it: {str(error).splitlines()[0]}") from error
    return Topology(kind, shape, slices, tuple(description.devices))


def environment(kind: Kind) -> None:
    """Set libtpu's environment variables: no TPU is attached, and other processes may compile too."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", kind.accelerator)
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
