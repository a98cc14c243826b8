"""A peer's worker with a kernel in plain torch, behind the real worker's protocol. Run by path: FAKE_PEER WORKER."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(sys.argv[1]).parent))

import torch
import vllm_cpu  # pyright: ignore[reportMissingImports] - the worker's script, next to which it runs


class Plain:
    """Attention by sequence; prints, as libraries do."""

    name, version, block_size = "plain", "1.0", 128

    def prepare(self, case):
        print("a library says hello")
        if case.dtype == "float16":
            raise ValueError("no float16 here")
        self.case = case
        keys = case.read("keys", case.pool_tokens, case.num_kv_heads)
        values = case.read("values", case.pool_tokens, case.num_kv_heads)
        self.queries = case.read("queries", case.query_tokens, case.num_heads)[: sum(case.query_lens)]
        rows = [
            (torch.arange(n) + first) % case.pool_tokens for n, first in zip(case.seq_lens, case.offsets, strict=True)
        ]
        self.plain = [(keys[r], values[r]) for r in rows]

    def plan(self):
        self.threads = torch.get_num_threads()

    def renew(self, query, key, value):
        self.query, self.sequences = self.queries * query, []
        for rows, new in zip(self.plain, self.case.query_lens, strict=True):
            keys, values = (x.clone() for x in rows)
            keys[-new:] *= key
            values[-new:] *= value
            self.sequences.append((keys, values))

    def fault(self):
        return ""

    def call(self):
        outs, group = [], self.case.num_heads // self.case.num_kv_heads
        queries = self.query.split(self.case.query_lens)
        for query, (keys, values) in zip(queries, self.sequences, strict=True):
            mask = torch.ones(len(query), len(keys), dtype=torch.bool).tril(len(keys) - len(query))
            q, k, v = (x.transpose(0, 1) for x in (query, keys, values))
            k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=self.case.scale)
            outs.append(out.transpose(0, 1))
        return torch.cat(outs).contiguous()

    def release(self):
        del self.plain


vllm_cpu.main(Plain)
