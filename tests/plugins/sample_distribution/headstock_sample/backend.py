"""The smallest backend there is: what it can do, and how."""

from headstock.core.attention import ANY, AttentionBackend, Capabilities
from headstock.core.attention.reference import attend_batch


class SampleBackend(AttentionBackend):
    """Attention by its definition, in float64."""

    @classmethod
    def capabilities(cls, device):
        yes = frozenset
        return Capabilities(
            dtypes=yes({"float32"}), kv_formats=yes({"fp32"}), head_sizes=ANY, group_sizes=ANY, block_sizes=ANY,
            kinds=yes({"decoder"}), kv_sources=yes({"cache"}), causal=yes({True}), layouts=("nhd", "hnd"),
        )  # fmt: skip

    def forward(self, layer, query, *, key, value, kv_cache, plan, out, lse_out=None):
        out.copy_(attend_batch(layer, query, plan, key=key, value=value, kv_cache=kv_cache)[0])
