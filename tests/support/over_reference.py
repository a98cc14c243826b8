"""rocm_attn with the reference in the place of our Triton kernels."""

from __future__ import annotations

from dataclasses import replace

from headstock.backends.reference import ReferenceBackend
from headstock.backends.rocm import RocmAttention


class Referred(ReferenceBackend):
    """The reference, as if it ran on the card, in the dtypes of the paged kernel: so that has most of the decodes."""

    @classmethod
    def capabilities(cls, device):
        return replace(super().capabilities(device), dtypes=frozenset({"float16", "bfloat16"}))


OverReference = RocmAttention.derive("OverReference", kernels=Referred)
