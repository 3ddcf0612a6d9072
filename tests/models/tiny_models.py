"""Tiny random-weight models from Transformers configurations; nothing is downloaded.

Also the device that the tests of this folder use: fl:1, or FL_TEST_DEVICE.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

DEVICE = os.environ.get("FL_TEST_DEVICE", "fl:1")


@dataclass(frozen=True)
class Case:
    """A model and one batch with labels, as keyword arguments of forward()."""

    make: Callable[[], nn.Module]
    batch: Callable[[], dict[str, torch.Tensor]]


def _tokens(vocabulary: int, rows: int = 2, length: int = 12) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(1, vocabulary, (rows, length), generator=generator)


def _images(size: int, rows: int = 2) -> torch.Tensor:
    return torch.randn(rows, 3, size, size, generator=torch.Generator().manual_seed(4))


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    return BertForSequenceClassification(BertConfig(
        vocab_size=97, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=32, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))  # fmt: skip


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(
        vocab_size=97, n_positions=64, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=0))  # fmt: skip


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=0, eos_token_id=0, pad_token_id=0))  # fmt: skip


def resnet() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    return ResNetForImageClassification(ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], num_labels=5, layer_type="bottleneck"))  # fmt: skip


def vit() -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=32, patch_size=8,
        num_labels=5, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))  # fmt: skip


def _bert_batch() -> dict[str, torch.Tensor]:
    mask = torch.ones(2, 12, dtype=torch.int64)
    mask[1, 9:] = 0
    return {"input_ids": _tokens(97), "attention_mask": mask, "labels": torch.tensor([0, 1])}


def _causal_batch() -> dict[str, torch.Tensor]:
    return {"input_ids": _tokens(97), "labels": _tokens(97)}


def _image_batch() -> dict[str, torch.Tensor]:
    return {"pixel_values": _images(32), "labels": torch.tensor([1, 4])}


CASES = {
    "bert": Case(bert, _bert_batch),
    "gpt2": Case(gpt2, _causal_batch),
    "llama": Case(llama, _causal_batch),
    "resnet": Case(resnet, _image_batch),
    "vit": Case(vit, _image_batch),
}


def make(name: str) -> nn.Module:
    """Return the model with the same random weights each time."""
    torch.manual_seed(0)
    return CASES[name].make()
