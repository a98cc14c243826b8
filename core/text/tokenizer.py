"""`Tokenizer`: text to token ids and back, over the `tokenizers` library. transformers is not imported."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ModelError, check_unicode
from .decoding import TextDecoder
from .spelling import read_spelling
from .tokenizer_files import TokenizerFiles, read_tokenizer_files

if TYPE_CHECKING:
    import tokenizers

SHORT = 4096
"""Characters that are tokenised in no time."""
SLOW_FILES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tiktoken.model", "vocab.json")


class Tokenizer:
    """A model's tokenizer. Immutable once made; may be shared between threads."""

    def __init__(self, backend: tokenizers.Tokenizer, files: TokenizerFiles) -> None:
        """Take over `backend`: its truncation and padding are switched off, declared special tokens are marked."""
        self._backend = backend
        # A tokenizer.json may carry training-time settings that would cut or pad prompts.
        backend.no_truncation()
        backend.no_padding()
        _mark_special(backend, files.special)
        added = backend.get_added_tokens_decoder()
        self._added = frozenset(added)
        self.special_token_ids = frozenset(id_ for id_, token in added.items() if token.special)
        """Ids that `skip_special_tokens` leaves out of texts."""
        self.special_tokens: Mapping[str, str] = files.named
        """Role (`bos_token`, `eos_token`…) → text."""
        named_eos = backend.token_to_id(files.named["eos_token"]) if "eos_token" in files.named else None
        eos = (*(() if named_eos is None else (named_eos,)), *files.eos_token_ids)
        self.eos_token_ids = tuple(dict.fromkeys(eos))
        """The tokenizer's own end of sequence, then those of the generation config."""
        state = backend.decoder.__getstate__() if backend.decoder is not None else b"null"
        self.spelling = read_spelling(json.loads(state))
        """How pieces become bytes."""
        self._bytes: dict[int, bytes] = {}

    @classmethod
    def from_folder(cls, path: str | Path) -> Tokenizer:
        """Load from a model folder's `tokenizer.json` and the JSON files beside it.

        Whether a text gets a begin-of-sequence token is decided by `tokenizer.json`'s post-processor alone, as in
        transformers 5. A folder that has only a slow tokenizer's files is converted by transformers, if installed.
        Raises `ModelError` where files are missing or broken.
        """
        folder = Path(path)
        file = folder / "tokenizer.json"
        if not file.is_file():
            return cls(_converted(folder), read_tokenizer_files(folder))
        import tokenizers

        try:
            backend = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises plain Exception
            raise ModelError(f"cannot read {file}: {error}.\n  fetch the file again, or update tokenizers") from error
        return cls(backend, read_tokenizer_files(folder))

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included; a model's embedding may have more rows."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of `text`; with `add_special_tokens` also those that the model wants around a text.

        Raises `InvalidInput` for text with lone surrogates, which no encoding can represent.
        """
        check_unicode("prompt", text)
        if len(text) <= SHORT:
            return self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        # Only batches let other threads of Python run meanwhile.
        return self._backend.encode_batch([text], add_special_tokens=add_special_tokens)[0].ids

    def decode(self, token_ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `token_ids`. Bytes that are not UTF-8 give one U+FFFD for each maximal broken sequence."""
        decoder = TextDecoder(self, skip_special_tokens=skip_special_tokens)
        return decoder.push(token_ids) + decoder.flush()

    def token_bytes(self, token_id: int, *, first: bool = False) -> bytes:
        """The bytes one token stands for; empty for an id the vocabulary does not use.

        `first` says that no text stands before; it matters to vocabularies that mark words by a leading space.
        """
        if first and self.spelling.first_piece_drops:
            return self._spell(token_id, first=True)
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._spell(token_id, first=False)
        return known

    def token_text(self, token_id: int, previous_token_ids: Sequence[int] = ()) -> str:
        """The text that a token completes after `previous_token_ids`, of which the last few bytes are looked at.

        Empty while a character is still incomplete; special tokens are shown.
        """
        decoder = TextDecoder(self, previous_token_ids, skip_special_tokens=False, at_start=False)
        return decoder.push((token_id,))

    def _spell(self, token_id: int, *, first: bool) -> bytes:
        piece = self._backend.id_to_token(token_id)
        if piece is None:
            return b""
        return self.spelling.bytes_of(piece, added=token_id in self._added, first=first)


def _mark_special(backend: tokenizers.Tokenizer, special: Iterable[str]) -> None:
    """Make the declared tokens special that the vocabulary holds as ordinary ones; ids stay as they are."""
    from tokenizers import AddedToken

    marked = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    missing = [text for text in sorted(special) if text not in marked and backend.token_to_id(text) is not None]
    if missing:
        backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in missing])


def _converted(folder: Path) -> tokenizers.Tokenizer:
    """The tokenizer of a folder without `tokenizer.json`, converted by transformers from what is there."""
    found = [name for name in SLOW_FILES if (folder / name).is_file()]
    advice = "  get the model's tokenizer.json, or have transformers write one (from_pretrained, then save_pretrained)"
    if not found:
        raise ModelError(f"{folder} has no tokenizer.json, nor the files of an older tokenizer.\n{advice}")
    try:
        from transformers import AutoTokenizer

        converted = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # conversion runs other people's code over other people's files: anything can be raised
        raise ModelError(
            f"{folder} has no tokenizer.json, and converting {', '.join(found)} failed: {error}.\n{advice}"
        ) from error
    backend = getattr(converted, "backend_tokenizer", None)
    if backend is None:
        raise ModelError(f"{folder} has no tokenizer.json, and transformers gives no fast tokenizer.\n{advice}")
    return backend
