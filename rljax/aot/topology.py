"""Kinds of TPU and GPU with their peak rates, and descriptions of what to compile for; none needs to be attached.

chips.toml has the rates, with their sources, and what the compiler reads of a GPU.
"""

import dataclasses
import importlib.metadata
import os
import pathlib
import re
import tomllib
from collections.abc import Sequence
from typing import Any

from rljax.language import parse

_TABLE = tomllib.loads(pathlib.Path(__file__).with_name("chips.toml").read_text())


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of TPU or GPU; figures are for one chip.

    Attributes:
      name: the name in ``KINDS``.
      accelerator: libtpu's name, which ends with a number of cores or chips; empty for a GPU.
      dims: dimensions of the torus; 1 for GPUs, which a switch connects.
      flops: peak bfloat16 operations per second.
      hbm: bytes of memory.
      bandwidth: bytes per second of memory.
      ici: bytes per second that a chip sends over all its links, within a slice or, for GPUs, a node.
      dcn: bytes per second to the network beyond, a chip's share of its host's.
      example: a topology of this kind.
      reported: what jax calls the kind of its devices.
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
    reported: Sequence[str]
    devices: int = 1

    @property
    def gpu(self) -> bool:
        """Whether it is a GPU."""
        return not self.accelerator

    @property
    def networks(self) -> dict[str, str]:
        """What the networks "ici" and "dcn" are called."""
        return {"ici": "NVLink", "dcn": "network"} if self.gpu else {"ici": "ICI", "dcn": "DCN"}

    def share(self) -> "Kind":
        """Return the figures for one jax device."""
        n = self.devices
        rates = {f: getattr(self, f) / n for f in ("flops", "bandwidth", "ici", "dcn")}
        return dataclasses.replace(self, hbm=self.hbm // n, devices=1, **rates)


KINDS = {name: Kind(name, **fields) for name, fields in _TABLE["kinds"].items()}


@dataclasses.dataclass(frozen=True)
class Topology:
    """One or several slices of a kind of TPU, or nodes of a kind of GPU.

    Attributes:
      kind: the kind of chip.
      shape: chips of a slice along each dimension of the torus; of a node.
      slices: number of slices, or nodes.
      devices: jax's device descriptions.
    """

    kind: Kind
    shape: tuple[int, ...]
    slices: int
    devices: tuple[Any, ...]

    @property
    def name(self) -> str:
        """Its name, such as "v5p:4x4x4", preceded by the number of slices if there are several; or "h100:16x8"."""
        if self.kind.gpu:
            return f"{self.kind.name}:{'x'.join(map(str, (self.slices, *self.shape)[self.slices == 1 :]))}"
        name = f"{self.kind.name}:{'x'.join(map(str, self.shape))}"
        return name if self.slices == 1 else f"{self.slices} x {name}"


def attached(devices: Sequence[Any] | None = None) -> Topology:
    """Return devices of one slice or node as a topology; None: those of this machine.

    Raises:
      ValueError: their kind is not in ``KINDS``.
    """
    if devices is None:
        import jax

        devices = jax.devices()
    kind = next((kind for kind in KINDS.values() if devices[0].device_kind in kind.reported), None)
    if kind is None:
        raise ValueError(f"target 'attached': the peak rates of {devices[0].device_kind!r} are not known.")
    return Topology(kind, (len(devices),), 1, tuple(devices))


def read(name: str) -> tuple[Kind, tuple[int, ...]]:
    """Return the kind and the sizes of a name such as "v5p:4x4x4" or, for 16 nodes of 8 GPUs, "h100:16x8".

    Raises:
      ValueError: an unknown kind, or a shape with another number of dimensions.
    """
    label, _, size = name.partition(":")
    if label not in KINDS:
        raise ValueError(f"target {name!r}: no TPU or GPU {label!r}.{parse.nearest(label, KINDS)}")
    kind = KINDS[label]
    form = "NODESxGPUS" if kind.gpu else "x".join(["N"] * kind.dims)
    counts = (1, 2) if kind.gpu else (kind.dims,)
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", size) or size.count("x") + 1 not in counts:
        raise ValueError(f"target {name!r}: {label} has the form {label}:{form}, such as {label}:{kind.example}.")
    return kind, tuple(int(n) for n in size.split("x"))


def describe(name: str, slices: int = 1) -> Topology:
    """Return the topology of ``slices`` slices of a name such as "v5e:4x4", or of nodes such as "h200:8", "h100:16x8".

    No chip is used, and jax is set to use the CPU.

    Raises:
      ValueError: an unknown name, a number of slices below 1, or a shape that the compiler does not know.
      RuntimeError: the compiler of this kind is not installed, or is not of jax's version.
    """
    kind, shape = read(name)
    if slices < 1:
        raise ValueError(f"num_slices={slices}: must be at least 1.")
    if kind.gpu and slices > 1:
        raise ValueError(f"num_slices={slices}: write the nodes of GPUs in the target, such as {kind.name}:{slices}x8.")
    if kind.gpu:
        slices, *shape = (1, *shape)[-2:]
    environment(kind)
    import jax
    from jax.experimental import topologies

    jax.config.update("jax_platforms", "cpu")  # jax may have been imported before the environment was set
    options: dict[str, Any]
    if kind.gpu:
        _check_plugin(jax.__version__)
        # each node is a slice, as jax has it where nodes share no NVLink
        options = {"platform": "cuda", "topology": f"{slices} x 1 x {shape[0]}", "target_config": _device(kind)}
    else:
        options = {"platform": "tpu"} | ({} if slices == 1 else {"num_slices": slices})
        if kind.name == "v4":
            options["chip_config_name"] = "megacore"
        if all(n == 1 for n in shape):
            options["chips_per_host_bounds"] = (1, 1, 1)
    try:
        description = topologies.get_topology_desc(topology_name=name, **options)
    except Exception as error:  # the type depends on the version of jax
        if "not installed" in str(error) or isinstance(error, ImportError):
            raise RuntimeError(
                "the TPU compiler is not installed. To fix, in the checkout: pip install -e '.[tpu]' (Linux on x86-64)."
            ) from error
        raise ValueError(f"target {name!r}: the compiler rejects it: {str(error).splitlines()[0]}") from error
    return Topology(kind, tuple(shape), slices, tuple(description.devices))


def _check_plugin(version: str) -> None:
    """Raise RuntimeError unless the GPU compiler of this version of jax is installed."""
    for package in ("jax-cuda12-plugin", "jax-cuda12-pjrt"):
        try:
            installed = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            raise RuntimeError(
                "the GPU compiler is not installed. To fix, in the checkout: pip install -e '.[gpu_aot]' "
                f"'{package}=={version}' (Linux; no GPU is needed)."
            ) from None
        if installed != version:
            raise RuntimeError(
                f"{package} {installed} is not of jax {version}. To fix: pip install '{package}=={version}'."
            )


def _device(kind: Kind) -> str:
    """Return a kind of GPU as the text of XLA's message GpuTargetConfigProto."""
    described = _TABLE["compiler"]
    fields = {**described["all"], **described[kind.name]}
    label, (major, extension) = fields.pop("name"), fields.pop("capability")
    numbers = " ".join(f"{name}: {value}" for name, value in fields.items())
    capability = f"cuda_compute_capability {{ major: {major} feature_extension: {extension} }}"
    return (
        f"gpu_device_info {{ {numbers} {capability} device_interconnect_info {{ active_links: 18 }} }} "
        f'platform_name: "CUDA" dnn_version_info {{ major: 9 minor: 10 }} device_description_str: "{label}"'
    )


def environment(kind: Kind) -> None:
    """Set the compiler's environment variables: nothing is attached, and other processes may compile too."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    if kind.gpu:  # kernels cannot be timed; the CPU's own flags stay
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_autotune_level=0"
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
        return
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    os.environ.setdefault("TPU_ACCELERATOR_TYPE", kind.accelerator)
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
