"""gpt-fast's functions over a Transformer: prefill, decoding, speculative decoding and sampling."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask

Callback = Callable[[Tensor], object]


def causal_mask(b: Tensor, h: Tensor, q: Tensor, kv: Tensor) -> Tensor:
    return q >= kv


def multinomial_sample_one_no_sync(probs_sort: Tensor) -> Tensor:
    """Draw one index of each row without waiting for the device (the exponential race)."""
    noise = torch.empty_like(probs_sort).exponential_(1)
    return (probs_sort / noise).argmax(dim=-1, keepdim=True).to(torch.int)


def logits_to_probs(logits: Tensor, temperature: float = 1.0, top_k: int | None = None) -> Tensor:
    logits = logits / max(temperature, 1e-5)
    if top_k is not None:
        lowest = logits.topk(min(top_k, logits.shape[-1])).values[..., -1:]
        logits = torch.where(logits < lowest, float("-inf"), logits)
    return logits.softmax(dim=-1)


def sample(logits: Tensor, temperature: float = 1.0, top_k: int | None = None) -> tuple[Tensor, Tensor]:
    """A token for each sequence's last row, and the probabilities that it was drawn from."""
    probs = logits_to_probs(logits[:, -1], temperature, top_k)
    return multinomial_sample_one_no_sync(probs), probs


def model_forward(model: nn.Module, x: Tensor, input_pos: Tensor) -> Tensor:
    logits: Tensor = model(x, input_pos)
    return logits


def prefill(model: nn.Module, x: Tensor, input_pos: Tensor, **sampling_kwargs: Any) -> Tensor:
    return sample(model_forward(model, x, input_pos), **sampling_kwargs)[0]


def decode_one_token(
    model: nn.Module, x: Tensor, input_pos: Tensor, block_mask: BlockMask | None = None, **sampling_kwargs: Any
) -> tuple[Tensor, Tensor]:
    """The next token [batch, 1] of x [batch, 1] and its probabilities, seeing what `block_mask` shows, or all."""
    if block_mask is None:
        return sample(model_forward(model, x, input_pos), **sampling_kwargs)
    mask = block_mask[:, :, input_pos // block_mask.BLOCK_SIZE[0]]
    mask.mask_mod, mask.seq_lengths = block_mask.mask_mod, (1, block_mask.seq_lengths[1])
    return sample(model(mask, x, input_pos), **sampling_kwargs)


def decode_n_tokens(
    model: nn.Module,
    cur_token: Tensor,
    input_pos: Tensor,
    num_new_tokens: int,
    callback: Callback = lambda _: None,
    **sampling_kwargs: Any,
) -> tuple[list[Tensor], list[Tensor]]:
    """So many tokens after `cur_token` [batch, 1], and their probabilities; `input_pos` moves along."""
    tokens, probs = [], []
    for _ in range(num_new_tokens):
        cur_token, prob = (out.clone() for out in decode_one_token(model, cur_token, input_pos, **sampling_kwargs))
        input_pos += 1
        tokens.append(cur_token)
        probs.append(prob)
        callback(cur_token)
    return tokens, probs


def speculative_decode(
    model: nn.Module,
    draft_model: nn.Module,
    cur_token: Tensor,
    input_pos: int,
    speculate_k: int,
    **sampling_kwargs: Any,
) -> Tensor:
    """Up to `speculate_k` + 1 tokens after `cur_token`, distributed as the model's own (Leviathan et al., 2023)."""
    start = torch.tensor([input_pos], device=cur_token.device)
    tokens, probs = decode_n_tokens(draft_model, cur_token.view(1, 1), start.clone(), speculate_k, **sampling_kwargs)
    drafted, draft_probs = torch.cat(tokens).flatten(), torch.cat(probs)
    verified = torch.cat([cur_token.view(1), drafted]).view(1, -1)
    positions = start + torch.arange(speculate_k + 1, device=cur_token.device)
    target_probs = logits_to_probs(model_forward(model, verified, positions)[0], **sampling_kwargs)
    rows = torch.arange(speculate_k, device=cur_token.device)
    p, q = draft_probs[rows, drafted], target_probs[rows, drafted]
    rejected = (torch.rand_like(q) > (q / p).clamp(max=1)).nonzero()
    if not len(rejected):
        # The draft has not seen its own last token yet.
        model_forward(draft_model, drafted[-1].view(1, 1), start + speculate_k)
        return torch.cat([drafted, multinomial_sample_one_no_sync(target_probs[-1])])
    kept = int(rejected[0])
    rest = (target_probs[kept] - draft_probs[kept]).clamp(min=0)
    return torch.cat([drafted[:kept], multinomial_sample_one_no_sync(rest / rest.sum())])


@torch.no_grad()
def generate(
    model: Any,
    prompt: Tensor,
    max_new_tokens: int,
    batch_size: int = 1,
    *,
    interactive: bool = False,
    draft_model: Any = None,
    speculate_k: int = 8,
    callback: Callback = lambda x: None,
    **sampling_kwargs: Any,
) -> tuple[Tensor, dict[str, list[int]]]:
    """Sequences [batch, prompt + new], all of one prompt, and how often so many tokens were accepted at once."""
    device, size = prompt.device, prompt.shape[-1]
    total = size + max_new_tokens
    room = 350 if interactive else min(total, model.config.block_size)
    with torch.device(device):
        for each in (model, draft_model):
            if each is not None:
                each.setup_caches(batch_size, room if draft_model is None else room + speculate_k + 1)
    rows = prompt.view(1, -1).repeat(batch_size, 1)
    positions = torch.arange(size, device=device)
    token = prefill(model, rows, positions, **sampling_kwargs).clone()
    found, counts = [rows, token], [0] * (speculate_k + 1)
    if draft_model is None:
        end = torch.tensor([size], device=device, dtype=torch.int)
        found += decode_n_tokens(model, token, end, max_new_tokens - 1, callback, **sampling_kwargs)[0]
        return torch.cat(found, dim=1).to(prompt.dtype), {"accept_counts": counts}
    prefill(draft_model, rows, positions, **sampling_kwargs)
    at = size
    while at < total - 1:
        gained = speculative_decode(model, draft_model, token[0, -1], at, speculate_k, **sampling_kwargs)
        counts[len(gained) - 1] += 1
        gained = gained[: total - at - 1]
        for each in gained:
            callback(each)
        token = gained.view(1, -1)
        found.append(token)
        at += len(gained)
    return torch.cat(found, dim=1).to(prompt.dtype), {"accept_counts": counts}
