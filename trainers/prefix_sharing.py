"""Sequences that share a prefix, trained as one tree in which each token of the prefix is once (arXiv:2511.00413).

The tokens of a tree are in depth-first order. A token sees those on the path to it from the root, and its position is
its depth, so it is computed as in each of its sequences alone. It is predicted from its parent, and its loss weighs as
much as in all of its sequences together. Loss and gradients are therefore those of the separate sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from agentmill.schemas.error_codes import ErrorCode
from agentmill.schemas.errors import UserError
from agentmill.trainers.token_shards import TOKENS, Columns
from agentmill.trainers.tokenization import Encoded

MASKED_BY_TREE = ("sdpa", "eager", "flex_attention")
"""Attention of transformers that takes a mask of which token sees which; the others know only rows after each other."""

PROBE = 8
"""Tokens of the prefix and of each branch with which a model is tried."""


@dataclass(frozen=True)
class TokenTree:
    """Arrays of one length: tokens in depth-first order, which of them carry loss, the ``weights`` of their loss (the
    sum over their sequences), and in how many sequences each carries loss (``copies``).

    ``branches`` has a row for each token whose parent is not the token before it: its place, and that of its parent.
    ``members`` are the places of its sequences among those that it was made of.
    """

    types: ClassVar[Columns] = {**Encoded.types, "copies": TOKENS, "branches": TOKENS}
    input_ids: NDArray[np.int32]
    weights: NDArray[np.float32]
    copies: NDArray[np.int32]
    branches: NDArray[np.int32]
    members: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.input_ids)

    def columns(self) -> dict[str, Any]:
        """The tree as it is stored; only tokens with loss have weights and copies."""
        mask = self.copies > 0
        loss = {"weights": self.weights[mask], "copies": self.copies[mask]}
        return {"input_ids": self.input_ids, "mask": mask, "branches": self.branches.ravel(), **loss}


def share_prefixes(sequences: Sequence[Encoded], max_length: int) -> list[TokenTree]:
    """The sequences as few trees of at most ``max_length`` tokens; each sequence is whole in one of them.

    Trees that would be longer are cut, and repeat what their sequences share. No sequence may be longer itself.
    """
    # In the order of their tokens, a sequence shares most with the one before it. As bytes with the highest first,
    # numbers compare as they should.
    ordered = sorted(range(len(sequences)), key=lambda place: sequences[place].input_ids.astype(">i4").tobytes())
    trees: list[list[tuple[int, int]]] = []
    size = 0
    last: Encoded | None = None
    for place in ordered:
        sequence = sequences[place]
        common = common_prefix(last.input_ids, sequence.input_ids) if last is not None else 0
        size += len(sequence) - common
        if not common or size > max_length:
            trees.append([])
            size, common = len(sequence), 0
        trees[-1].append((place, common))
        last = sequence
    return [_tree(sequences, members) for members in trees]


def common_prefix(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    """How many tokens two sequences share from the start on."""
    length = min(len(one), len(other))
    differing = np.flatnonzero(one[:length] != other[:length])
    return int(differing[0]) if len(differing) else length


def _tree(sequences: Sequence[Encoded], members: Sequence[tuple[int, int]]) -> TokenTree:
    """The tree of some sequences in the order of their tokens: each by its place, with how many it shares."""
    size = sum(len(sequences[place]) - common for place, common in members)
    ids, weights, copies = np.zeros(size, np.int32), np.zeros(size, np.float32), np.zeros(size, np.int32)
    branches: list[tuple[int, int]] = []
    path, end = np.empty(0, np.int64), 0
    for place, common in members:
        sequence = sequences[place]
        new = len(sequence) - common
        if new and common and path[common - 1] != end - 1:
            branches.append((end, int(path[common - 1])))
        path = np.r_[path[:common], end : end + new]
        ids[end : end + new] = sequence.input_ids[common:]
        end += new
        # Nothing precedes the first token, so it is never predicted.
        trained = np.flatnonzero(sequence.mask[1:]) + 1
        weights[path[trained]] += sequence.weights[trained]
        copies[path[trained]] += 1
    pairs = np.array(branches, np.int32).reshape(-1, 2)
    return TokenTree(ids, weights, copies, pairs, tuple(place for place, _ in members))


def tree_structure(length: int, branches: Sequence[int]) -> dict[str, NDArray[np.int64]]:
    """Of each token of a tree its depth (``position_ids``), the place of its parent, and where what follows it ends.

    ``branches`` are those of a ``TokenTree``, one row after the other. The root is its own parent.
    """
    pairs = np.array(branches, np.int64).reshape(-1, 2)
    parents = np.maximum(np.arange(length) - 1, 0)
    parents[pairs[:, 0]] = pairs[:, 1]
    depths, ends = np.arange(length), np.full(length, length)
    for start, stop in pairwise([*pairs[:, 0], length]):
        depths[start:stop] += depths[parents[start]] + 1 - start
    # From the last branch on, so that a token keeps the first that leaves it.
    for start, parent in pairs[::-1]:
        ends[parent + 1 : start] = start
    return {"position_ids": depths, "parents": parents, "ends": ends}


def with_structure(batch: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Of trees as they are on disk: their structure, and the ``copies`` of each token."""
    trees = [tree_structure(len(mask), found) for mask, found in zip(batch["mask"], batch["branches"], strict=True)]
    copies = [np.zeros(len(mask), np.int64) for mask in batch["mask"]]
    for each, mask, given in zip(copies, batch["mask"], batch["copies"], strict=True):
        each[np.array(mask, bool)] = given
    return {"copies": copies, **{name: [tree[name] for tree in trees] for name in ("position_ids", "parents", "ends")}}


def tree_mask(ends: torch.Tensor, model: Any) -> Any:
    """Which tokens each token sees, in the form that the attention of ``model`` takes; ``ends`` are (rows, tokens).

    But for ``flex_attention`` it is dense: its size grows with the square of the tokens.
    """
    ends = torch.maximum(ends, torch.arange(1, ends.shape[1] + 1, device=ends.device))

    def sees(row: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key <= query) & (query < ends[row, key])

    mask: Callable[..., Any] = ALL_MASK_ATTENTION_FUNCTIONS[model.config._attn_implementation]
    rows, tokens = ends.shape
    return mask(
        batch_size=rows,
        q_length=tokens,
        kv_length=tokens,
        mask_function=sees,
        allow_is_causal_skip=False,
        dtype=model.dtype,
        config=model.config,
        device=ends.device,
    )


def check_prefixes_can_be_shared(model: Any, max_length: int) -> None:
    """Raises ``UserError`` for a model that does not compute a tree of ``max_length`` tokens as its sequences alone."""
    config = model.config.get_text_config()
    reason = _unfit(config, max_length) or _differs(model)
    if reason:
        raise UserError(f"share_prefixes: {reason}; set share_prefixes: false", ErrorCode.PREFIX_SHARING_IMPOSSIBLE)


def _unfit(config: Any, max_length: int) -> str | None:
    """Why a model of this configuration cannot be trained on trees, as far as it shows that."""
    if config._attn_implementation not in MASKED_BY_TREE:
        return f"attention {config._attn_implementation} takes no mask of a tree, as {', '.join(MASKED_BY_TREE)} do"
    windows = [getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")]
    layers = getattr(config, "layer_types", None) or ["sliding_attention"]
    narrow = [window for window in windows if window is not None and window < max_length]
    # Such a model ignores its window where it is given a mask, which a short probe would not show.
    if narrow and set(layers) != {"full_attention"}:
        return f"tokens see only {min(narrow)} tokens back in this model, which a tree does not heed"
    return None


def _differs(model: Any) -> str | None:
    """Why not, after trying the model on a tree of two sequences and on the sequences alone."""
    prefix, one, other = torch.arange(3 * PROBE, device=model.device).split(PROBE)
    structure = tree_structure(3 * PROBE, [2 * PROBE, PROBE - 1])
    positions, ends = (torch.tensor(structure[name], device=model.device)[None] for name in ("position_ids", "ends"))
    # Dropout alone would make the outputs differ.
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            tree = model(
                input_ids=torch.cat([prefix, one, other])[None],
                position_ids=positions,
                attention_mask=tree_mask(ends, model),
                use_cache=False,
            ).logits[0, PROBE:]
            alone = [
                model(input_ids=torch.cat([prefix, each])[None], use_cache=False).logits[0] for each in (one, other)
            ]
    # What a model raises that takes no positions, or a mask of another shape.
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        return f"this model takes no mask of a tree ({' '.join(str(error).split())[:100]})"
    finally:
        model.train(training)
    expected = torch.cat([each[PROBE:] for each in alone])
    # Not exactly equal: kernels round differently, most of all in bf16.
    if (tree - expected).abs().max() > 0.01 * expected.abs().max():
        return "this model does not keep the branches of a tree apart"
    return None
