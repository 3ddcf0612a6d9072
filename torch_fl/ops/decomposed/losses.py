"""Losses: the margin losses' gradients and connectionist temporal classification. Reductions: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_fl.ops.decompositions import register


@register("aten::multi_margin_loss_backward")
def multi_margin_loss_backward(grad_output: Tensor, self: Tensor, target: Tensor, p: float, margin: float,
                               weight: Tensor | None = None, reduction: int = 1) -> Tensor:  # fmt: skip
    x = self.reshape(-1, self.size(-1)) if self.dim() else self.reshape(1, 1)
    wanted = target.reshape(-1, 1)
    distance = margin - x.gather(1, wanted) + x
    column = torch.arange(x.size(1), device=x.device)
    scale = 1.0 / x.size(1) / (x.size(0) if reduction == 1 else 1)
    slope = torch.where((distance > 0) & (column != wanted), scale if p == 1 else 2 * scale * distance, 0.0)
    if weight is not None:
        slope = slope * weight.gather(0, wanted.reshape(-1)).unsqueeze(1)
    slope = slope.to(x.dtype).scatter(1, wanted, -slope.sum(1, keepdim=True).to(x.dtype))
    return (slope * grad_output.reshape(-1, 1)).view(self.shape)


@register("aten::multilabel_margin_loss_backward")
def multilabel_margin_loss_backward(grad_output: Tensor, self: Tensor, target: Tensor, reduction: int,
                                    is_target: Tensor) -> Tensor:  # fmt: skip
    x = self.reshape(-1, self.size(-1)) if self.dim() else self.reshape(1, 1)
    labels = target.reshape(x.shape)
    listed = (labels >= 0).to(torch.int64).cumprod(1).bool()  # the list ends at the first -1
    labels = labels.clamp(min=0)
    distance = 1 - x.gather(1, labels).unsqueeze(2) + x.unsqueeze(1)
    other = (is_target.reshape(x.shape) == 0).unsqueeze(1)
    active = ((distance > 0) & listed.unsqueeze(2) & other).to(x.dtype)
    slope = active.sum(1).scatter_add(1, labels, -active.sum(2))
    scale = 1.0 / x.size(1) / (x.size(0) if reduction == 1 else 1)
    return (slope * scale * grad_output.reshape(-1, 1)).view(self.shape)


# Connectionist temporal classification


def _labels(log_probs: Tensor, targets: Tensor, target_lengths: Sequence[int], blank: int) -> Tensor:
    """[batch, 2 * longest + 1]: blank, first label, blank, second label, ..."""
    batch, longest = log_probs.size(1), max(target_lengths, default=0)
    labels = torch.full((batch, 2 * longest + 1), blank, dtype=torch.int64, device=log_probs.device)
    start = 0
    for n, length in enumerate(target_lengths):
        row = targets[n, :length] if targets.dim() == 2 else targets[start : start + length]
        labels[n, 1 : 2 * length : 2] = row
        start += length
    return labels


def _shifted(x: Tensor, by: int) -> Tensor:
    """x moved by `by` places along dimension 1, -inf coming in."""
    filler = x.new_full((x.size(0), min(abs(by), x.size(1))), float("-inf"))
    return torch.cat([filler, x[:, :-by]], 1) if by > 0 else torch.cat([x[:, -by:], filler], 1)


def _step(state: Tensor, skips: Tensor, by: int, emitted: Tensor) -> Tensor:
    """One time step: stay, advance by one, or skip a blank between different labels."""
    reached = torch.logaddexp(state, _shifted(state, by))
    return torch.logaddexp(reached, torch.where(skips, _shifted(state, 2 * by), float("-inf"))) + emitted


def _ends(labels: Tensor, target_lengths: Sequence[int]) -> Tensor:
    """True at the two places where a complete labelling may end."""
    length = torch.tensor(target_lengths, device=labels.device).unsqueeze(1)
    place = torch.arange(labels.size(1), device=labels.device)
    return (place == 2 * length) | (place == 2 * length - 1)


@register("aten::_ctc_loss", last_resort=True)
def ctc_loss(log_probs: Tensor, targets: Tensor, input_lengths: Sequence[int], target_lengths: Sequence[int],
             blank: int = 0, zero_infinity: bool = False) -> tuple[Tensor, Tensor]:  # fmt: skip
    labels = _labels(log_probs, targets, target_lengths, blank)
    emitted = log_probs.transpose(0, 1).gather(2, labels.unsqueeze(1).expand(-1, log_probs.size(0), -1))
    different = labels != torch.cat([labels[:, :2], labels[:, :-2]], 1)[:, : labels.size(1)]
    place = torch.arange(labels.size(1), device=labels.device)
    starts = (place == 0) | (place == 1) & (torch.tensor(target_lengths, device=labels.device) > 0).unsqueeze(1)
    state = torch.where(starts, emitted[:, 0], float("-inf"))
    states = [state]
    for t in range(1, log_probs.size(0)):
        state = _step(state, different & (place >= 2), 1, emitted[:, t])
        states.append(state)
    log_alpha = torch.stack(states, 1)
    last = torch.tensor([max(n - 1, 0) for n in input_lengths], device=labels.device)
    final = log_alpha.gather(1, last.view(-1, 1, 1).expand(-1, 1, labels.size(1))).squeeze(1)
    total = torch.where(_ends(labels, target_lengths), final, float("-inf")).logsumexp(1)
    nothing = torch.tensor([n == 0 for n in input_lengths], device=labels.device)
    empty = torch.tensor([0.0 if n == 0 else float("inf") for n in target_lengths], device=labels.device)
    return torch.where(nothing, empty.to(total.dtype), -total), log_alpha


@register("aten::_ctc_loss_backward", last_resort=True)
def ctc_loss_backward(grad: Tensor, log_probs: Tensor, targets: Tensor, input_lengths: Sequence[int],
                      target_lengths: Sequence[int], neg_log_likelihood: Tensor, log_alpha: Tensor, blank: int,
                      zero_infinity: bool = False) -> Tensor:  # fmt: skip
    labels = _labels(log_probs, targets, target_lengths, blank)
    steps, width = log_probs.size(0), labels.size(1)
    emitted = log_probs.transpose(0, 1).gather(2, labels.unsqueeze(1).expand(-1, steps, -1))
    place = torch.arange(width, device=labels.device)
    ahead = torch.cat([labels[:, 2:], labels[:, -2:]], 1)[:, :width]
    different = (labels != ahead) & (place < width - 2)
    lengths = torch.tensor(input_lengths, device=labels.device).unsqueeze(1)
    ends = _ends(labels, target_lengths)
    state = torch.full_like(emitted[:, 0], float("-inf"))
    states = []
    for t in reversed(range(steps)):
        start = torch.where(ends, emitted[:, t], float("-inf"))
        state = torch.where(lengths - 1 == t, start, _step(state, different, -1, emitted[:, t]))
        states.append(state)
    log_beta = torch.stack(states[::-1], 1)
    # The probability of being at a place at a time; summed over the places of one label it is the gradient's minuend.
    both = log_alpha + log_beta
    occupancy = torch.where(torch.isinf(both), 0, (both - emitted + neg_log_likelihood.view(-1, 1, 1)).exp())
    target = labels.unsqueeze(1).expand(-1, steps, -1)
    per_label = torch.zeros_like(log_probs.transpose(0, 1)).scatter_add(2, target, occupancy)
    slope = log_probs.transpose(0, 1).exp() - per_label
    inside = torch.arange(steps, device=labels.device) < lengths
    slope = torch.where(inside.unsqueeze(2), slope * grad.reshape(-1, 1, 1), 0)
    if zero_infinity:
        slope = torch.where(torch.isinf(neg_log_likelihood).view(-1, 1, 1), 0, slope)
    return slope.transpose(0, 1).contiguous()
