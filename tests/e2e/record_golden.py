"""Record what transformers answers to the parity prompts: `python tests/e2e/record_golden.py`.

Every prompt of `data/prompts.json` is tokenised (conversations through the chat template), continued greedily for 64
tokens in float32 by `generate`, which stops at the end-of-sequence token, and replayed in float64 to learn how far
apart the two likeliest tokens were at each step: where they are close, a correct engine may differ. The result is
`data/golden.json`.
"""

from __future__ import annotations

import json
import platform
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer

from headstock.core.model import resolve_model

DATA = Path(__file__).parent / "data"
NEW_TOKENS = 64


def main() -> None:
    """Write `data/golden.json`."""
    torch.manual_seed(0)
    folder = resolve_model("smollm2").path
    prompts = json.loads((DATA / "prompts.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = [_tokenize(tokenizer, prompt) for prompt in prompts]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    answers = [_greedy(model, prompt) for prompt in ids]
    model = model.to(torch.float64)
    records = []
    for prompt, tokens, answer in zip(prompts, ids, answers, strict=True):
        likeliest, gaps = _replay(model, tokens, answer)
        records.append(
            {
                "kind": prompt["kind"],
                "prompt_token_ids": tokens,
                "output_token_ids": answer,
                "finish_reason": "stop" if answer[-1] == model.generation_config.eos_token_id else "length",
                "text": tokenizer.decode(answer, skip_special_tokens=True),
                "float64_token_ids": likeliest,
                "float64_gaps": gaps,
            }
        )
        print(f"{prompt['kind']:8} {len(tokens):4} tokens, smallest gap {min(gaps):.2e}: {records[-1]['text'][:60]!r}")
    document = {
        "model": "smollm2",
        "max_tokens": NEW_TOKENS,
        "attention": model.config._attn_implementation,
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
        "records": records,
    }
    lines = json.dumps(document, indent=1, ensure_ascii=False).replace("\n    ", " ").replace("\n   ]", " ]")
    (DATA / "golden.json").write_text(lines + "\n")


def _tokenize(tokenizer, prompt: dict) -> list[int]:
    if "messages" in prompt:
        return tokenizer.apply_chat_template(prompt["messages"], add_generation_prompt=True, return_dict=False)
    return tokenizer(prompt["text"])["input_ids"]


def _greedy(model, tokens: list[int]) -> list[int]:
    prompt = torch.tensor([tokens])
    with torch.inference_mode():
        out = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=NEW_TOKENS)
    return out[0, len(tokens) :].tolist()


def _replay(model, tokens: list[int], answer: list[int]) -> tuple[list[int], list[float]]:
    """For each token of `answer`: the likeliest one in float64, given those before it, and its lead over the second."""
    with torch.inference_mode():
        logits = model(torch.tensor([tokens + answer[:-1]])).logits[0, len(tokens) - 1 :]
    top = logits.topk(2, dim=-1)
    gaps = (top.values[:, 0] - top.values[:, 1]).tolist()
    return top.indices[:, 0].tolist(), [float(f"{gap:.6g}") for gap in gaps]


if __name__ == "__main__":
    main()
