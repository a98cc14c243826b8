"""The kit through flashinfer's own Python: only its compiled kernels are stood in for, by what `attending` computes.

Its constructors, plans and runs check and translate what the adapter gives; what arrives at the kernels is what they
would be given on a card.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from headstock.backends.flashinfer import FlashInfer
from support.conforming import failed, outcomes, passed
from support.doubles.attending import attend, window
from support.doubles.devices import pretend

pytestmark = [pytest.mark.heavy, pytest.mark.real]
NEEDED = "apache-tvm-ffi einops ninja tabulate nvidia-ml-py click tqdm requests"
CAUSAL = 1


class Kernels:
    """What stands where the compiled module would: it keeps what it was planned for, and attends."""

    def __init__(self):
        self.planned = []

    def plan(self, *args):
        self.planned.append(args)
        return [len(self.planned)]

    def paged_run(self, *args):
        q, keys, values, starts, indptr, indices, last, out, lse, mask, layout, left = args[3:15]
        softcap, scale = args[22:24]
        assert (layout, args[16]) == (0, None), "NHD, and no mask of its own"
        for row in range(len(starts) - 1):
            rows, pages = slice(int(starts[row]), int(starts[row + 1])), indices[indptr[row] : indptr[row + 1]].long()
            n = (len(pages) - 1) * keys.shape[1] + int(last[row])
            k, v = (
                x.view(torch.uint8)[pages].view(x.dtype) if x.element_size() == 1 else x[pages] for x in (keys, values)
            )
            k, v = (x.flatten(0, 1)[:n].double() for x in (k, v))
            seen = window(rows.stop - rows.start, n, left, 0 if mask == CAUSAL else -1)
            result, sums = attend(q[rows], k, v, scale=scale, seen=seen, softcap=softcap)
            out[rows] = result.to(out.dtype)
            if lse is not None:
                lse[rows] = (sums / torch.log(torch.tensor(2.0))).float()


@pytest.fixture
def kernels(monkeypatch):
    """The real package on a card it believes to be an A100, without memory that only a card can pin."""
    try:
        import flashinfer
    except ImportError as error:
        pytest.skip(f"needs pip install --no-deps flashinfer-python==0.7.4 {NEEDED} ({error})")
    assert flashinfer.__version__.startswith("0.7."), flashinfer.__version__
    found, empty = Kernels(), torch.empty

    def unpinned(*args, pin_memory=False, **kwargs):
        return empty(*args, **kwargs)

    monkeypatch.setattr(torch, "empty", unpinned)
    for module in (flashinfer.prefill, flashinfer.decode, flashinfer.utils):
        for name, answer in {
            "get_compute_capability": (8, 0),
            "is_sm90a_supported": False,
            "device_support_pdl": False,
            "cudnn_frontend_serves_frost_decode": False,
        }.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, lambda *_, answer=answer: answer)
    for module in (flashinfer.prefill, flashinfer.decode):
        monkeypatch.setattr(module, "get_batch_prefill_module", lambda *_: found)
    return SimpleNamespace(library=flashinfer, planned=found.planned)


def test_it_conforms_through_the_real_wrappers(kernels):
    found = outcomes(FlashInfer, pretend("a100"), made_up=300)
    assert failed(found) == []
    assert passed(found) >= {"keys", "window", "lse", "softcap", "kv-formats", "graph", "plans", "layers", "mixed"}
    assert len(kernels.planned) > 500


def test_the_real_wrapper_takes_the_query_to_be_float16(kernels):
    wrapper = kernels.library.BatchPrefillWithPagedKVCacheWrapper(torch.zeros(2**20, dtype=torch.uint8))
    one = torch.tensor([0, 1], dtype=torch.int32)
    wrapper.plan(one, one, one[:1], one[1:], 2, 1, 64, 16)
    cache = torch.zeros(1, 16, 1, 64, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="q_data_type"):
        wrapper.run(torch.zeros(1, 2, 64, dtype=torch.bfloat16), (cache, cache))
