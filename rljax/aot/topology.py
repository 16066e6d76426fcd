"""TPUs that need not be there: what the chips of each kind can do, and descriptions of slices to compile for.

Figures of a chip are those of Google's pages, cloud.google.com/tpu/docs/{v4,v5e,v5p,v6e,tpu7x}, read in 2026: peak
compute in bfloat16, memory and its bandwidth, bandwidth to other chips (half of the bidirectional figure: what a chip
sends) and to the data centre's network.
"""

import dataclasses
import os
import re
from typing import Any

from rljax.language import parse

_GB, _GIB = 10**9, 2**30


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of TPU; figures are of one chip."""

    name: str
    accelerator: str  # as libtpu calls it, with a number of cores or chips behind
    dims: int  # of its torus
    flops: float  # a second, bfloat16
    hbm: int  # bytes
    bandwidth: float  # bytes a second
    ici: float  # bytes a second that a chip sends over all its links
    dcn: float  # bytes a second, a chip's share of its host's network
    example: str
    devices: int = 1  # of a chip, as jax counts them

    def share(self) -> "Kind":
        """Return the figures of one device."""
        n = self.devices
        rates = {f: getattr(self, f) / n for f in ("flops", "bandwidth", "ici", "dcn")}
        return dataclasses.replace(self, hbm=self.hbm // n, devices=1, **rates)


KINDS = {
    # v4 is described as megacore, one device a chip; its page gives no data centre figure, the one of v5p is taken
    "v4": Kind("v4", "v4-8", 3, 275e12, 32 * _GIB, 1200 * _GB, 300 * _GB, 6.25 * _GB, "4x4x4"),
    # 1600 Gbit/s between chips; 6.4 Tbit/s for 256 chips to the data centre
    "v5e": Kind("v5e", "v5litepod-16", 2, 197e12, 16 * _GIB, 819 * _GB, 200 * _GB, 3.125 * _GB, "4x4"),
    # 1200 GB/s both ways; 50 Gbit/s a chip
    "v5p": Kind("v5p", "v5p-8", 3, 459e12, 95 * _GIB, 2765 * _GB, 600 * _GB, 6.25 * _GB, "4x4x4"),
    # 800 GB/s both ways; 25.6 Tbit/s for 256 chips
    "v6e": Kind("v6e", "v6e-16", 2, 918e12, 32 * _GIB, 1638 * _GB, 400 * _GB, 12.5 * _GB, "4x4"),
    # 1200 GB/s both ways; 100 Gbit/s a chip; two devices
    "tpu7x": Kind("tpu7x", "tpu7x-8", 3, 2307e12, 192 * _GIB, 7380 * _GB, 600 * _GB, 12.5 * _GB, "2x2x1", 2),
}


@dataclasses.dataclass(frozen=True)
class Topology:
    """Slices of a kind of TPU."""

    kind: Kind
    shape: tuple[int, ...]  # chips of a slice along each dimension
    slices: int
    devices: tuple[Any, ...]  # as jax describes them

    @property
    def name(self) -> str:
        """The name it was asked for by, with the number of slices where there are several."""
        name = f"{self.kind.name}:{'x'.join(map(str, self.shape))}"
        return name if self.slices == 1 else f"{self.slices} x {name}"


def read(name: str) -> tuple[Kind, tuple[int, ...]]:
    """Return the kind and shape of "v5p:4x4x4".

    Raises:
      ValueError: no such kind, or a shape it does not come in.
    """
    given, _, size = name.partition(":")
    if given not in KINDS:
        raise ValueError(f"topology {name!r}: no TPU {given!r}.{parse.nearest(given, KINDS)}")
    kind = KINDS[given]
    form = "x".join(["N"] * kind.dims)
    if not re.fullmatch(r"\d+(x\d+)*", size) or size.count("x") != kind.dims - 1:
        raise ValueError(f"topology {name!r}: {given} comes as {given}:{form}, such as {given}:{kind.example}.")
    return kind, tuple(int(n) for n in size.split("x"))


def describe(name: str, slices: int = 1) -> Topology:
    """Return the topology of a name such as "v5e:4x4" or "v5p:4x4x4", as many slices as asked for.

    Nothing is started on a TPU, and jax keeps to its CPU for everything else.

    Raises:
      ValueError: an unknown name, a number below 1, or a shape the compiler does not know.
      RuntimeError: libtpu, which holds the compiler, is not installed.
    """
    kind, shape = read(name)
    if slices < 1:
        raise ValueError(f"num_slices={slices}: at least 1.")
    environment(kind)
    import jax
    from jax.experimental import topologies

    jax.config.update("jax_platforms", "cpu")  # imported before the environment was set, perhaps
    options: dict[str, Any] = {} if slices == 1 else {"num_slices": slices}
    if kind.name == "v4":
        options["chip_config_name"] = "megacore"
    if all(n == 1 for n in shape):
        options["chips_per_host_bounds"] = (1, 1, 1)
    try:
        found = topologies.get_topology_desc(platform="tpu", topology_name=name, **options)
    except Exception as error:  # jax raises many kinds, by version
        if "not installed" in str(error) or isinstance(error, ImportError):
            raise RuntimeError(
                "the TPU compiler is not installed: pip install 'rljax[tpu]' (jax[tpu], Linux on x86-64)."
            ) from error
        raise ValueError(f"topology {name!r}: the compiler refuses it: {str(error).splitlines()[0]}") from error
    return Topology(kind, shape, slices, tuple(found.devices))


def environment(kind: Kind) -> None:
    """Tell libtpu that there is no TPU to look for, and that other processes may compile too."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", kind.accelerator)
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
