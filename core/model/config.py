"""`ModelConfig`: what there is to know about a model before its weights are loaded."""

from __future__ import annotations

from dataclasses import dataclass

from ..attention import DTYPE_FORMATS, AttentionSpec, Device, kv_format, model_window
from ..errors import InvalidInput
from .description import ModelDescription
from .rope import RopeConfig

BFLOAT16_FEATURES = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""`Device.features` of CPUs that multiply bfloat16 in hardware: x86's AVX-512 and AMX, ARM's extension."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerConfig:
    """What may differ between the layers of a model."""

    window: int | None = None
    """Keys a query sees, the current one included; None is all."""
    rope: bool = True
    """Whether Q and K are rotated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer, as Hugging Face's `config.json` describes it (see `read_config`)."""

    architecture: str
    """Class name in Hugging Face's terms."""
    source: str
    """Path of the file it was read from, for messages."""
    vocab_size: int
    """Rows of the embedding; the tokenizer may know fewer tokens."""
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    max_position: int
    """Longest text, in tokens, that the model is made for."""
    rms_norm_eps: float
    rope: RopeConfig
    layers: tuple[LayerConfig, ...]
    dtype: str
    """Of the stored weights: a key of `DTYPE_FORMATS`."""
    tie_word_embeddings: bool = False
    """The output projection is the embedding."""
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    attention_scale: float = 0.0
    """Multiplies q·k; 0 means 1/sqrt(head_size)."""
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    """Multiplies what each half of a layer adds to the stream."""
    logits_divisor: float = 1.0
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    """Tokens that end an answer; from `generation_config.json` where that names any."""

    @property
    def implementation(self) -> str:
        """Whose code runs it: our own decoder's."""
        return "headstock"

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def heads_of_rank(self, rank: int, tp_size: int) -> tuple[range, range]:
        """The query and the KV heads that rank `rank` of `tp_size` holds; KV heads are shared by ranks where too few.

        Raises `InvalidInput` where the heads cannot be split so.
        """
        if tp_size < 1 or self.num_heads % tp_size:
            raise InvalidInput("tensor_parallel_size", f"{self.num_heads} query heads cannot be split into {tp_size}")
        if max(self.num_kv_heads, tp_size) % min(self.num_kv_heads, tp_size):
            raise InvalidInput("tensor_parallel_size", f"{self.num_kv_heads} KV heads cannot be split into {tp_size}")
        queries = self.num_heads // tp_size
        first = rank * self.num_kv_heads // tp_size
        return range(rank * queries, (rank + 1) * queries), range(first, first + max(1, self.num_kv_heads // tp_size))

    def attention_specs(
        self, dtype: str, *, block_size: int = 16, kv_format: str = "auto", tp_size: int = 1
    ) -> dict[str, AttentionSpec]:
        """Layer name → the attention that a rank of `tp_size` computes there in `dtype`, in the order of the layers."""
        queries, keys = self.heads_of_rank(0, tp_size)
        return {
            layer_name(index): AttentionSpec(
                num_heads=len(queries),
                num_kv_heads=len(keys),
                head_size=self.head_size,
                dtype=dtype,
                kv_format=kv_format,
                block_size=block_size,
                window=model_window(layer.window),
                scale=self.attention_scale,
            )
            for index, layer in enumerate(self.layers)
        }

    @property
    def num_parameters(self) -> int:
        """Weights of the model; a tied output projection counts once."""
        per_layer = self._matrix_parameters_per_layer + 2 * self.hidden_size
        per_layer += self.qkv_bias * (self.num_heads + 2 * self.num_kv_heads) * self.head_size
        per_layer += self.output_bias * self.hidden_size + self.qk_norm * 2 * self.head_size
        per_layer += self.mlp_bias * (2 * self.intermediate_size + self.hidden_size)
        outer = (1 if self.tie_word_embeddings else 2) * self.vocab_size * self.hidden_size
        return self.num_layers * per_layer + outer + self.hidden_size

    def weight_bytes(self, dtype: str) -> int:
        """Bytes of the weights held in `dtype`."""
        return self.num_parameters * kv_format(DTYPE_FORMATS[dtype]).element_bytes

    def lookup_bytes(self, dtype: str) -> int:
        """Bytes of weights in `dtype` of which a step reads a few rows: an embedding that is not the output too."""
        rows = 0 if self.tie_word_embeddings else self.vocab_size
        return rows * self.hidden_size * kv_format(DTYPE_FORMATS[dtype]).element_bytes

    def kv_bytes_per_token(self, dtype: str, *, kv_format: str = "auto", tp_size: int = 1) -> int:
        """Bytes that one token takes in the caches of all layers of a rank."""
        specs = self.attention_specs(dtype, kv_format=kv_format, tp_size=tp_size)
        return sum(spec.bytes_per_token for spec in specs.values())

    def flops_per_token(self, context: int = 0) -> int:
        """Multiplications and additions for one token that sees `context` keys (fewer where a layer has a window)."""
        matrices = self.num_layers * self._matrix_parameters_per_layer + self.vocab_size * self.hidden_size
        keys = sum(min(context, layer.window or context) for layer in self.layers)
        return 2 * matrices + 4 * keys * self.num_heads * self.head_size

    @property
    def _matrix_parameters_per_layer(self) -> int:
        heads = 2 * self.num_heads + 2 * self.num_kv_heads
        return self.hidden_size * (heads * self.head_size + 3 * self.intermediate_size)


def layer_name(index: int) -> str:
    """The name of layer `index`'s attention."""
    return f"model.layers.{index}.self_attn.attn"


def resolve_dtype(dtype: str, config: ModelDescription, device: Device) -> str:
    """The dtype to compute in: `dtype`, or for ``"auto"`` the one that suits the weights and the device.

    On a GPU that is the dtype of the weights, float32 weights becoming bfloat16. On a CPU it is float32, unless the CPU
    multiplies bfloat16 in hardware and the weights are 16-bit: elsewhere torch emulates it, many times slower.
    Raises `InvalidInput` for unknown names.
    """
    if dtype != "auto":
        if dtype not in DTYPE_FORMATS:
            raise InvalidInput("dtype", f"{dtype!r} is not one of auto, {', '.join(DTYPE_FORMATS)}")
        return dtype
    if device.platform != "cpu":
        return "bfloat16" if config.dtype in ("float32", "float64") else config.dtype
    fast = device.features & BFLOAT16_FEATURES and config.dtype in ("bfloat16", "float16")
    return "bfloat16" if fast else "float32"
