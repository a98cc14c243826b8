"""What can never run is refused at once, so that it cannot block the queue."""

from __future__ import annotations

from ..errors import CapacityError, InvalidInput
from ..kv import KVCacheManager
from .config import SchedulerConfig
from .output import EngineRequest


def check_admissible(request: EngineRequest, config: SchedulerConfig, kv: KVCacheManager) -> None:
    """Raise `InvalidInput` or `CapacityError` where `request` could not get a single token even alone.

    A request that may *grow* past the cache is admitted: it ends with reason ``length`` when it gets there.
    """
    num_tokens = len(request.prompt_token_ids)
    if not num_tokens:
        raise InvalidInput("prompt", "is empty; give at least one token")
    if num_tokens + 1 > config.max_model_len:
        raise InvalidInput(
            "prompt",
            f"has {num_tokens} tokens, and max_model_len={config.max_model_len} counts prompt and answer; "
            f"give at most {config.max_model_len - 1} tokens",
        )
    if request.params.n != 1:
        raise InvalidInput("n", f"the engine runs one completion a request, not {request.params.n}; fan out before it")
    need = kv.config.blocks_for(num_tokens + 1)
    if need > kv.config.capacity:
        raise CapacityError(
            f"prompt: {num_tokens} tokens and one more need {need} KV blocks, and the cache has {kv.config.capacity} "
            f"({kv.max_tokens} tokens). Shorten the prompt or give the cache more memory."
        )
