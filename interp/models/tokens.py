"""Text to token ids and back to something a person can read, with BOS said aloud and no byte lost.

`pieces` show each token as text; a token that holds only part of a character shows its bytes, `<0xF0><0x9F>`. `bytes_of`
returns the bytes themselves, which joined give the text back wherever the tokenizer does not normalise it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal, get_args

import torch

from interp.errors import InterpError
from interp.shapes import Ids

Bos = Literal["keep", "add", "none"]


@dataclass(frozen=True, eq=False)
class Tokens:
    """The exact ids that enter the model, int64 on the CPU, beside what they show as and how BOS was treated."""

    ids: Ids
    pieces: tuple[str, ...]
    text: str = ""
    bos: str = "keep"
    first_is_bos: bool = False

    def __len__(self) -> int:
        return len(self.pieces)

    def cut(self, most: int | None) -> Tokens:
        """The first `most` tokens (the first token stays: sinks live there); everything where `most` is None."""
        if most is not None and most < 1:
            raise InterpError(f"at least 1 token is needed; got max_tokens={most}")
        if most is None or len(self) <= most:
            return self
        return replace(self, ids=self.ids[:most], pieces=self.pieces[:most])


def tokenise(
    tokenizer: Any, text: str | Sequence[int] | torch.Tensor | Tokens, bos: str = "keep", name: str = "the model"
) -> Tokens:
    """Tokens of one text. `bos`: keep = as the tokenizer does by itself, add = one BOS in front, none = nothing added.

    A text that already begins with BOS gets no second one. Ids are taken as they are. A model without a tokenizer takes ids,
    also as a text of whole numbers ("2 0 1"). Raises InterpError for an empty text, an unknown `bos`, or no BOS to add.
    """
    if bos not in get_args(Bos):
        raise InterpError(f"bos={bos!r}; give one of {', '.join(get_args(Bos))}")
    if isinstance(text, Tokens):
        return text
    if not isinstance(text, str):
        return _from_ids(tokenizer, text, bos)
    if tokenizer is None:
        if not re.fullmatch(r"\s*\d+(\s+\d+)*\s*", text):
            raise InterpError(f"{name} has no tokenizer; give its ids, as numbers with spaces between ('2 0 1')")
        return replace(_from_ids(None, [int(word) for word in text.split()], bos), text=text)
    if not text:
        raise InterpError(f"the text is empty: no tokens for {name}; give at least one word")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InterpError(f"the text holds a lone surrogate at character {error.start}, which is no Unicode text") from None
    bos_id = tokenizer.bos_token_id
    ids = list(_encode(tokenizer, text, special=bos == "keep"))
    if bos == "add":
        if bos_id is None:
            raise InterpError(f"bos='add', but the tokenizer of {name} has no BOS token; use keep or none")
        if ids[:1] != [bos_id]:
            ids = [bos_id, *ids]
    if not ids:
        raise InterpError(f"the text {text[:40]!r} has no tokens for {name}; give at least one word")
    return replace(_from_ids(tokenizer, ids, bos), text=text)


def _encode(tokenizer: Any, text: str, special: bool) -> list[int]:
    if hasattr(tokenizer, "backend_tokenizer"):
        # Straight to the Rust tokenizer: no warning about lengths, no padding or truncation settings in the way.
        return tokenizer.backend_tokenizer.encode(text, add_special_tokens=special).ids
    return tokenizer.encode(text, add_special_tokens=special)


def _from_ids(tokenizer: Any, ids: Iterable[int] | torch.Tensor, bos: str) -> Tokens:
    given = ids if isinstance(ids, torch.Tensor) else list(ids)
    if isinstance(given, list) and any(isinstance(one, (str, list, tuple)) for one in given):
        raise InterpError("one text is a string or one row of ids; several texts go to interp.captures")
    row = torch.as_tensor(given).to("cpu", torch.int64)
    if row.ndim != 1 or not len(row):
        raise InterpError(f"ids of one text are one row of at least one number; got shape {tuple(row.shape)}")
    listed = row.tolist()
    pieces = tuple(shown(bytes_of(tokenizer, number)) if tokenizer is not None else str(number) for number in listed)
    bos_id = None if tokenizer is None else tokenizer.bos_token_id
    return Tokens(row, pieces, "", bos, bos_id is not None and listed[0] == bos_id)


def shown(raw: bytes) -> str:
    """A token's bytes as text where they are whole characters, else each byte as <0xNN>.

    >>> shown("é".encode()), shown(b"\\xf0\\x9f")
    ('é', '<0xF0><0x9F>')
    """
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "".join(f"<0x{byte:02X}>" for byte in raw)


def bytes_of(tokenizer: Any, token_id: int) -> bytes:
    """The bytes one token stands for: byte-level and byte-fallback pieces decoded, ▁ and Ġ back to spaces."""
    if not hasattr(tokenizer, "backend_tokenizer"):
        return tokenizer.decode([token_id]).encode("utf-8", "replace")
    backend = tokenizer.backend_tokenizer
    piece = backend.id_to_token(token_id)
    if piece is None:
        return f"[id {token_id}]".encode()
    if token_id in (added := _added(tokenizer)):
        return added[token_id].encode()
    kinds = _decoder_kinds(tokenizer)
    if "ByteLevel" in kinds:
        table = _byte_of_character()
        return bytes(table[character] for character in piece) if all(c in table for c in piece) else piece.encode()
    if "ByteFallback" in kinds and (found := re.fullmatch(r"<0x([0-9A-F]{2})>", piece)):
        return bytes([int(found[1], 16)])
    if "WordPiece" in kinds:
        return (piece[2:] if piece.startswith("##") else f" {piece}").encode()
    return piece.replace("▁", " ").encode()


def _added(tokenizer: Any) -> dict[int, str]:
    kept = tokenizer.__dict__.get("_interp_added")
    if kept is None:
        kept = {number: str(token) for number, token in tokenizer.added_tokens_decoder.items()}
        tokenizer.__dict__["_interp_added"] = kept
    return kept


def _decoder_kinds(tokenizer: Any) -> frozenset[str]:
    kept = tokenizer.__dict__.get("_interp_decoder")
    if kept is None:
        decoder = json.loads(tokenizer.backend_tokenizer.to_str()).get("decoder") or {}
        steps = decoder.get("decoders", [decoder])
        kept = tokenizer.__dict__["_interp_decoder"] = frozenset(step.get("type", "") for step in steps)
    return kept


@lru_cache(maxsize=1)
def _byte_of_character() -> dict[str, int]:
    """GPT-2's alphabet turned around: printable bytes stand for themselves, the 68 others for U+0100 and up, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = [byte for byte in range(256) if byte not in set(printable)]
    return table | {chr(0x100 + place): byte for place, byte in enumerate(others)}
