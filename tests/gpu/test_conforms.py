"""The kit over every built-in backend that runs on this machine's card."""

from __future__ import annotations

import pytest
import torch

from headstock.entrypoints.compose import installed_plugins
from headstock.plugins.conformance import Subject, cases_for, check
from headstock.selector import Selector, probe

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA or ROCm device"),
]
NAMES = [offer.label for offer in installed_plugins().backends.offers if offer.record.builtin]


@pytest.mark.parametrize("name", NAMES)
def test_it_conforms_on_the_card(name):
    card = next(device for device in probe() if device.platform in ("cuda", "rocm"))
    plugins = installed_plugins()
    judge, offer = Selector(plugins).judge(card), plugins.backends.find(name)
    if reasons := judge.standing(offer)[0]:
        pytest.skip("; ".join(reasons))
    subject = Subject(name=name, cls=offer.load(), device=card, options=judge.options(offer))
    failed = [o for o in check(subject, cases_for(subject)) if o.status == "failed"]
    assert [(o.case, o.reason, o.problem) for o in failed] == []
