"""The fields of a decoder-only transformer."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Annotated, Literal, get_args

from rljax.language import settings
from rljax.language.settings import NonNegative, Positive, Size, group, setting
from rljax.models import towers
from rljax.models.network import attention
from rljax.types import Range

Dtype = Literal["float32", "bfloat16"]
Remat = Literal["none", "full", "dots", "auto"]
Output = Literal["logits", "scalar", "both"]
Activation = Literal["silu", "gelu"]
RopeRule = Literal["llama3", "yarn"]
Norm = Literal["rms", "layer"]
# bounds far above published models: a nonsense value is refused before a tree of arrays is made from it
Layers = Annotated[int, Range(1, 1000)]
Heads = Annotated[int, Range(1, 4000)]
OptionalSize = Annotated[int, Range(0, 4000)]
Experts = Annotated[int, Range(0, 500)]
Width = Annotated[int, Range(1, 10**6)]
OptionalWidth = Annotated[int, Range(0, 10**6)]
DecodeWeights = Literal["float", "int8"]
Form = attention.Form
# the matrices of a layer: how many dimensions each contracts, and how many it returns
MATRICES: dict[str, tuple[int, int]] = {
    "query": (1, 2),
    "key": (1, 2),
    "value": (1, 2),
    "attention_output": (2, 1),
    "gate": (1, 1),
    "up": (1, 1),
    "down": (1, 1),
}
ADAPTER = ("_adapter_in", "_adapter_out")  # suffixes of a matrix's name: [in..., rank] and [rank, out...]
FROZEN = "_frozen"  # suffix of the name of a part of the parameters that is never trained


@dataclasses.dataclass(frozen=True)
class Architecture:
    """The shape of a model and how it is computed. Raises ValueError, naming the field, on an invalid value.

    ``remat`` chooses what the backward pass recomputes in each layer: "none" saves every activation, "full" saves the
    layer's input only, "dots" also the results of its weight matmuls; "auto" is "none" here, and a program chooses
    between "none" and "full" by ``saved``. ``scan`` runs the layers in one loop, so that
    compile time does not grow with their number; without it they are unrolled. ``output`` is the unembedding
    ("logits"), one number per position ("scalar": a critic or a reward model), or "both" on one trunk. ``bins`` (first
    center, last center, number) makes that number the expectation of a distribution over bins.
    """

    vocabulary: Size = setting(0, "Ids of the vocabulary; 0: the tokenizer's.", fixed=True)
    layers: Layers = setting(2, "Layers.", fixed=True)
    width: Width = setting(128, "Width of the residual stream.", fixed=True)
    heads: Heads = setting(4, "Query heads of a layer.", fixed=True)
    kv_heads: Heads = setting(2, "Key and value heads of a layer; divides ``heads``.", fixed=True)
    hidden: Width = setting(384, "Hidden units of a layer's gated unit.", fixed=True)
    head_size: OptionalSize = setting(0, "Size of a head, even; 0: width / heads.", fixed=True)
    tied: bool = setting(True, "Whether the unembedding is the embedding, transposed.", fixed=True)
    rope_theta: Positive = setting(10_000.0, "Base of the rotary frequencies.", fixed=True)
    rope_local_theta: NonNegative = setting(
        0.0, "Base in layers with a window, whose wavelengths are then not stretched; 0: as in the others.", fixed=True
    )
    rope_factor: Positive = setting(1.0, "Factor that stretches the wavelengths.", fixed=True)
    rope_original: Size = setting(
        0, "0: the factor stretches all wavelengths; else the long ones, relative to this original length.", fixed=True
    )
    rope_rule: RopeRule = setting(
        "llama3", "With rope_original: stretch as a function of wavelength ('llama3') or of index ('yarn').", fixed=True
    )
    rope_low: Positive = setting(
        1.0, "With rope_original: longer wavelengths than original / low are stretched.", fixed=True
    )
    rope_high: Positive = setting(
        4.0, "With rope_original: shorter wavelengths than original / high are not.", fixed=True
    )
    rope_truncate: bool = setting(True, "Whether 'yarn' rounds the two indices to whole numbers.", fixed=True)
    rope_sections: tuple[int, ...] = setting(
        (),
        "Frequencies that a picture's tokens turn with their picture, row and column; (): all with the token.",
        fixed=True,
    )
    rope_scale: Positive = setting(1.0, "Factor of the rotated queries and keys; 'yarn' uses one above 1.", fixed=True)
    norm: Norm = setting(
        "rms", "Norm: 'rms' divides by the root mean square; 'layer' also subtracts the mean.", fixed=True
    )
    norm_epsilon: Positive = setting(1e-6, "Added to the mean square in a norm.", fixed=True)
    norm_offset: NonNegative = setting(
        0.0, "Added to the scale of a norm; scales start where the sum is 1.", fixed=True
    )
    bias: tuple[str, ...] = setting((), "Matrices that have a bias.", fixed=True)
    head_norm: bool = setting(False, "Whether queries and keys are normalized before the rotation.", fixed=True)
    post_norm: bool = setting(False, "Whether attention and the gated unit are followed by a norm.", fixed=True)
    gated: bool = setting(True, "Whether hidden units are gated; else they are activation(x up) alone.", fixed=True)
    activation: Activation = setting("silu", "Activation of the gate; 'gelu' is the approximation by tanh.", fixed=True)
    embedding_scale: Positive = setting(1.0, "Factor of the embeddings, rounded to ``dtype``.", fixed=True)
    query_scale: NonNegative = setting(0.0, "Factor of the attention scores; 0: head_size^-1/2.", fixed=True)
    attention_cap: NonNegative = setting(0.0, "Attention scores become cap tanh(score / cap); 0: no cap.", fixed=True)
    logit_cap: NonNegative = setting(0.0, "Logits become cap tanh(logit / cap); 0: no cap.", fixed=True)
    window: Size = setting(0, "Positions that a local layer attends to, its position included.", fixed=True)
    pattern: tuple[str, ...] = setting(("global",), "Kinds of the layers, 'local' or 'global', repeated.", fixed=True)
    experts: Experts = setting(0, "Experts of a layer; 0: one gated unit.", fixed=True)
    experts_per_token: Experts = setting(0, "Experts that the router chooses for a token.", fixed=True)
    expert_hidden: OptionalWidth = setting(0, "Hidden units of an expert.", fixed=True)
    normalise_experts: bool = setting(True, "Whether the chosen experts' probabilities sum to 1.", fixed=True)
    dtype: Dtype = setting("float32", "Type of activations and matmul operands; reductions are float32.", fixed=True)
    param_dtype: Dtype = setting("float32", "Type of the parameters.", fixed=True)
    decode_attention: Literal["plain", "kernel"] = setting(
        "plain", "Attention of decoding; 'kernel': one kernel a layer, on GPUs, for heads of 16, 32, 64, ..."
    )
    decode_weights: DecodeWeights = setting("float", "Type of the sampler's matrices; 'int8' rounds them.")
    remat: Remat = setting(
        "none",
        "What the backward pass recomputes: nothing, layers, all but weight matmuls; auto: 'full' above 2 GiB saved.",
    )
    scan: bool = setting(True, "Whether the layers run in one loop: compiles once for all of them, runs slower.")
    adapter_rank: OptionalSize = setting(0, "Rank of low-rank adapters; 0: the whole network is trained.", fixed=True)
    adapter_scale: Positive = setting(1.0, "Factor of the adapters' product: alpha / rank.", fixed=True)
    adapter_modules: tuple[str, ...] = setting(tuple(MATRICES), "Matrices that have an adapter.", fixed=True)
    attention: Literal["plain", "blocked", "cudnn", "splash"] = setting(
        "plain", "Implementation of attention outside decoding; 'cudnn' on GPU, 'splash' on TPU."
    )
    vision: towers.Vision = group(towers.Vision, fixed=True)
    output: Output = "logits"
    bins: tuple[float, float, int] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.vision, Mapping):  # fields, as ``checkpoints.families.read`` returns them
            object.__setattr__(self, "vision", towers.read(self.vision))
        settings.check(self)
        if not self.head_size:
            if self.width % self.heads:
                raise ValueError(f"width={self.width} must be divisible by heads={self.heads} when head_size is 0")
            object.__setattr__(self, "head_size", self.width // self.heads)
        if self.head_size % 2:
            raise ValueError(f"head_size={self.head_size} must be even: rotary positions rotate pairs")
        if self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads} must be divisible by kv_heads={self.kv_heads}")
        if self.rope_high <= self.rope_low:
            raise ValueError(f"rope_high={self.rope_high} must be above rope_low={self.rope_low}")
        if self.rope_original and self.rope_rule == "yarn" and self.rope_theta <= 1:
            raise ValueError(f"rope_theta={self.rope_theta} must be above 1 with rope_rule='yarn'")
        split = self.rope_sections
        if split and (len(split) != 3 or sum(split) != self.head_size // 2 or min(split) < 0):
            raise ValueError(f"rope_sections={self.rope_sections}: must be three numbers of sum {self.head_size // 2}")
        if self.output not in get_args(Output):
            raise ValueError(f"output={self.output!r}: must be one of {', '.join(get_args(Output))}")
        self._check_attention()
        self._check_bias()
        if self.experts:
            if not self.expert_hidden:
                raise ValueError(f"expert_hidden={self.expert_hidden}: must be at least 1 with experts={self.experts}")
            if not 1 <= self.experts_per_token <= self.experts:
                raise ValueError(f"experts_per_token={self.experts_per_token} must be 1 to experts={self.experts}")
        self._check_adapters()

    def _check_bias(self) -> None:
        if set(self.bias) - set(MATRICES):
            raise ValueError(f"bias={self.bias!r}: choose some of {', '.join(MATRICES)}")
        if self.experts and {"gate", "up", "down"} & set(self.bias):
            raise ValueError(f"bias={self.bias!r}: experts have no biases (experts={self.experts})")
        if not self.gated and (self.experts or "gate" in self.bias):
            raise ValueError("gated=False: neither experts nor a bias of 'gate'")

    def _check_adapters(self) -> None:
        if not self.adapter_modules or set(self.adapter_modules) - set(MATRICES):
            raise ValueError(f"adapter_modules={self.adapter_modules!r}: choose some of {', '.join(MATRICES)}")
        within = [name for name in self.adapted if name in ("gate", "up", "down")]
        if self.experts and within:
            raise ValueError(
                f"adapter_modules: {', '.join(within)} cannot have adapters with experts={self.experts}; choose some "
                "of query, key, value, attention_output"
            )

    def _check_attention(self) -> None:
        if self.decode_attention == "kernel" and (self.head_size < 16 or self.head_size & (self.head_size - 1)):
            raise ValueError(f"decode_attention='kernel': head_size={self.head_size}, must be 16, 32, 64, ...")
        if self.attention == "cudnn" and self.attention_cap:
            raise ValueError(f"attention='cudnn' does not support attention_cap={self.attention_cap}: choose another")
        if self.attention == "splash" and self.vision.layers and self.vision.mutual:
            raise ValueError("attention='splash' does not support vision.mutual: choose another")
        if not self.pattern or set(self.pattern) - {"local", "global"}:
            raise ValueError(f"pattern={self.pattern!r}: expected a sequence of 'local' and 'global', not empty")
        if ("local" in self.pattern) != bool(self.window):
            raise ValueError(
                f"window={self.window} and pattern={self.pattern!r}: set window above 0 if a layer is local, else to 0"
            )

    @property
    def adapted(self) -> tuple[str, ...]:
        """The matrices of a layer that have an adapter."""
        if not self.adapter_rank:
            return ()
        return tuple(name for name in self.adapter_modules if self.gated or name != "gate")

    @functools.cached_property
    def tower(self) -> "Architecture":
        """The layers of the vision tower."""
        v = self.vision
        return Architecture(
            layers=v.layers,
            width=v.width,
            heads=v.heads,
            kv_heads=v.heads,
            hidden=v.hidden,
            **towers.FORMS[v.form],
            pattern=v.pattern,
            window=v.window if "local" in v.pattern else 0,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            remat=self.remat,
            scan=self.scan,
            adapter_rank=self.adapter_rank if v.trained else 0,
            adapter_scale=self.adapter_scale,
        )

    @property
    def tower_name(self) -> str:
        """The name of the tower's parameters; the name of frozen ones ends in ``FROZEN``."""
        return "tower" if self.vision.trained else f"tower{FROZEN}"

    def saved(self, tokens: int, length: int) -> int:
        """Return about how many bytes a backward pass keeps of all layers without rematerialization.

        A layer keeps its input, both norms and projections (5 D a token), queries, keys and values before and after
        rotation, the mixed values (H), and four numbers for each hidden unit that a token uses; "plain" attention also
        keeps scores and their softmax.

        Args:
          tokens: tokens of the batch.
          length: tokens of a row.

        Returns:
          An estimate from shapes, without what a compiler saves.
        """
        heads, kv = self.heads * self.head_size, self.kv_heads * self.head_size
        hidden = self.experts_per_token * (self.expert_hidden or self.hidden) if self.experts else self.hidden
        scores = 2 * self.heads * length if self.attention == "plain" else 0
        each = 5 * self.width + 3 * heads + 4 * kv + 4 * hidden + scores
        return tokens * self.layers * each * (2 if self.dtype == "bfloat16" else 4)

    def local(self, layer: int) -> bool:
        """Return whether a layer attends to a window only."""
        return self.pattern[layer % len(self.pattern)] == "local"

    def form(self, local: bool) -> Form:
        """Return how attention scores are computed, in a local or a global layer."""
        scale = self.query_scale or self.head_size**-0.5
        ahead = self.vision.tokens - 1 if self.vision.layers and self.vision.mutual else 0
        return Form(scale, self.attention_cap, self.window if local else 0, ahead)
