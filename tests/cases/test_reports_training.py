"""Cases from public problem reports on PyTorch devices: nn operators, autograd, copies and asynchrony.

Each states the right value by assert, with the CPU as the reference. "Source" names the report, "Kind" the fault: the
same fault usually sits in every sibling operator. FL_TEST_DEVICE chooses the device (fl:1).
"""

# ruff: noqa: E501, E731
from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from device_under_test import DEVICE, INF, dev, run_py, same
from torch import nn

# ------------------------------------------------------------------------------ nn operators


def test_ignore_index_in_cross_entropy():
    """
    Source: pytorch/pytorch#108148 -- cross_entropy counts rows whose label is ignore_index
    Kind: sentinel-index (out-of-range label that must be skipped)
    """
    x = torch.tensor([[0.0, 1.0, 2.0], [1.0, 0.0, -1.0], [0.3, 0.2, 0.1], [2.0, 1.0, 0.0]])
    for ign, lab in ((-100, [2, -100, 1, -100]), (-1, [2, -1, 1, 0]), (1, [2, 1, 0, 1]), (77, [77, 0, 77, 2])):
        t = torch.tensor(lab)
        for kw in (
            dict(reduction="none"),
            dict(reduction="mean"),
            dict(reduction="sum", weight=torch.tensor([1.0, 2.0, 3.0])),
            dict(label_smoothing=0.1),
        ):
            a, b = dev(x).requires_grad_(), x.clone().requires_grad_()
            dkw = {k: dev(v) if torch.is_tensor(v) else v for k, v in kw.items()}
            la, lb = F.cross_entropy(a, dev(t), ignore_index=ign, **dkw), F.cross_entropy(b, t, ignore_index=ign, **kw)
            same(la, lb)
            la.sum().backward()
            lb.sum().backward()
            same(a.grad, b.grad)


def test_embedding_index_out_of_range_is_reported():
    """
    Source: pytorch/pytorch#154235 -- an embedding index past the table returns data instead of an error
    Kind: missing-check (bad index accepted silently)
    """
    p = run_py("""
        emb = nn.Embedding(3, 5).to(device)
        try:
            out = emb(torch.tensor([0, 1, 3]).to(device))
            out.sum().item()          # an asynchronous report is fine, silence is not
        except (IndexError, RuntimeError):
            print("REPORTED")
    """)
    assert "REPORTED" in p.stdout or p.returncode != 0, p.stdout + p.stderr


def test_transposed_convolution_small():
    """
    Source: pytorch/pytorch#82711 -- ConvTranspose1d with stride 2 overlaps its output wrongly
    Source: pytorch/pytorch#82563 -- conv_transpose1d with stride 8 and padding 4 differs from CPU
    Kind: conv-geometry (stride, padding, dilation, groups of transposed convolution)
    """
    y, w = torch.ones(1, 1, 2), torch.ones(1, 1, 2)
    same(F.conv_transpose1d(dev(y), dev(w), stride=2), torch.ones(1, 1, 4))
    g = torch.Generator().manual_seed(9)
    x, k, b = torch.randn(2, 4, 9, generator=g), torch.randn(4, 3, 5, generator=g), torch.randn(6, generator=g)
    kw = dict(stride=3, padding=2, output_padding=1, dilation=2, groups=2)
    same(F.conv_transpose1d(dev(x), dev(k), dev(b), **kw), F.conv_transpose1d(x, k, b, **kw))
    x2, k2 = torch.randn(1, 4, 5, 6, generator=g), torch.randn(4, 2, 3, 2, generator=g)
    kw2 = dict(stride=(2, 1), padding=(1, 0), output_padding=(1, 0), groups=2)
    same(F.conv_transpose2d(dev(x2), dev(k2), **kw2), F.conv_transpose2d(x2, k2, **kw2))


def test_convolution_asymmetric_stride():
    """
    Source: pytorch/pytorch#83180 -- conv2d with a different stride per axis differs from CPU
    Kind: conv-geometry (per-axis parameters swapped)
    """
    g = torch.Generator().manual_seed(10)
    x, w = torch.randn(2, 4, 7, 10, generator=g), torch.randn(6, 2, 3, 2, generator=g)
    kw = dict(stride=(1, 2), padding=(2, 1), dilation=(2, 1), groups=2)
    for fmt in (torch.contiguous_format, torch.channels_last):
        a, b = dev(x.to(memory_format=fmt)).requires_grad_(), x.clone().requires_grad_()
        wa, wb = dev(w).requires_grad_(), w.clone().requires_grad_()
        ya, yb = F.conv2d(a, wa, **kw), F.conv2d(b, wb, **kw)
        same(ya, yb)
        ya.square().sum().backward()
        yb.square().sum().backward()
        same(a.grad, b.grad, 1e-3, 1e-3)
        same(wa.grad, wb.grad, 1e-3, 1e-3)


def test_bad_output_padding_is_refused():
    """
    Source: pytorch/pytorch#169236 -- an output_padding not below stride and dilation is accepted, giving a wider output
    Kind: missing-check (argument validation lives only in the CPU kernel)
    """
    for cls, shape in (
        (nn.ConvTranspose1d, (1, 1, 4)),
        (nn.ConvTranspose2d, (1, 1, 4, 4)),
        (nn.ConvTranspose3d, (1, 1, 4, 4, 4)),
    ):
        m = dev(cls(1, 1, 3, stride=1, output_padding=1))
        with pytest.raises(RuntimeError):
            m(torch.ones(shape, device=DEVICE)).sum().item()


def test_batchnorm_backward_channels_last():
    """
    Source: pytorch/pytorch#175189 -- BatchNorm2d weight gradient is off by 7 orders of magnitude for channels_last
    Source: pytorch/pytorch#169372 -- batch norm of a permuted channels_last view has wrong gradients
    Source: pytorch/pytorch#190645 -- BatchNorm3d crashes on a permuted input
    Kind: memory-format (forward right, backward wrong)
    """
    g = torch.Generator().manual_seed(11)
    for x, bn in (
        (torch.randn(4, 3, 5, 5, generator=g).to(memory_format=torch.channels_last), nn.BatchNorm2d(3)),
        (torch.randn(4, 5, 5, 3, generator=g).permute(0, 3, 1, 2), nn.BatchNorm2d(3)),
        (torch.randn(2, 4, 3, 5, 3, generator=g).permute(0, 4, 1, 2, 3), nn.BatchNorm3d(3)),
    ):
        dbn, gy = dev(copy.deepcopy(bn)), torch.randn(x.shape, generator=g)
        a, b = dev(x).detach().requires_grad_(), x.detach().clone().requires_grad_()
        dbn(a).backward(dev(gy))
        bn(b).backward(gy)
        same(a.grad, b.grad)
        same(dbn.weight.grad, bn.weight.grad)
        same(dbn.running_var, bn.running_var)


def test_batch_norm_statistics_and_input():
    """
    Source: flagos-ai/FlagGems#6332 -- training batch norm without running statistics overwrites its input
    Source: flagos-ai/Torch-FL#295 -- the same fault seen through the device routing
    Source: artyom-beilis/pytorch_dlprim#52 -- batch norm through the CPU fallback trains but breaks in eval (empty members)
    Source: pytorch/pytorch#88697 -- the op's schema does not declare that it updates its statistics
    Kind: undeclared-mutation (op updates arguments that its schema calls read-only; a copying fallback drops the update)
    """
    x = torch.randn(6, 3, 4, generator=torch.Generator().manual_seed(16)) * 2 + 1
    bn = nn.BatchNorm1d(3)
    dbn = dev(copy.deepcopy(bn))
    for _ in range(3):
        same(dbn(dev(x)), bn(x))
    same(dbn.running_mean, bn.running_mean)
    same(dbn.running_var, bn.running_var)
    assert int(dbn.num_batches_tracked) == 3
    bn.eval(), dbn.eval()
    same(dbn(dev(x)), bn(x))
    for kw in (dict(), dict(weight=torch.full((3,), 2.0), bias=torch.ones(3))):
        dx = dev(x).requires_grad_()
        y = F.batch_norm(dx, None, None, training=True, **{k: dev(v) for k, v in kw.items()})
        same(y, F.batch_norm(x, None, None, training=True, **kw))
        same(dx, x)  # the input is left alone
        y.square().sum().backward()
    inorm = nn.InstanceNorm1d(3, affine=True, track_running_stats=True)
    dinorm = dev(copy.deepcopy(inorm))
    same(dinorm(dev(x)), inorm(x))
    same(dinorm.running_var, inorm.running_var)


def test_depthwise_and_volumetric_convolution():
    """
    Source: intel/torch-xpu-ops#1575 -- the operator chosen for depthwise convolution has no CPU kernel to fall back to
    Source: intel/intel-extension-for-pytorch#60 -- the overrideable convolution cannot fall back to the CPU
    Kind: fallback-target-missing (core picks a device-only operator; the CPU does not implement it)
    """
    g = torch.Generator().manual_seed(17)
    for x, w, kw in (
        (torch.randn(2, 4, 6, 6, generator=g), torch.randn(4, 1, 3, 3, generator=g), dict(groups=4, padding=1)),
        (torch.randn(2, 4, 6, 6, generator=g), torch.randn(8, 1, 3, 3, generator=g), dict(groups=4, dilation=2)),
        (torch.randn(1, 2, 4, 5, 4, generator=g), torch.randn(3, 2, 2, 3, 2, generator=g), dict(stride=(1, 2, 1))),
    ):
        f = F.conv3d if x.dim() == 5 else F.conv2d
        a, wa = dev(x).requires_grad_(), dev(w).requires_grad_()
        b, wb = x.clone().requires_grad_(), w.clone().requires_grad_()
        ya, yb = f(a, wa, **kw), f(b, wb, **kw)
        same(ya, yb)
        ya.cos().sum().backward()
        yb.cos().sum().backward()
        same(a.grad, b.grad, 1e-3, 1e-4)
        same(wa.grad, wb.grad, 1e-3, 1e-4)


def test_causal_attention_in_half_precision():
    """
    Source: pytorch/pytorch#195910 -- is_causal leaks future tokens in fp16 and bf16
    Source: torch-spyre/torch-spyre#1409 -- causal attention fails for some sequence lengths and not for others
    Kind: attention-mask (mask applied at tile granularity)
    """
    g = torch.Generator().manual_seed(12)
    for L in (5, 16, 38):
        q, k, v = (torch.randn(1, 2, L, 16, generator=g) for _ in range(3))
        ref = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        for dt in (torch.float32, torch.bfloat16, torch.float16):
            dq, dk, dv = (dev(t).to(dt) for t in (q, k, v))
            same(F.scaled_dot_product_attention(dq, dk, dv, is_causal=True), ref.to(dt), 3e-2, 3e-2)
            dv[:, :, L // 2 :] = 99.0  # the future must not matter
            got = F.scaled_dot_product_attention(dq, dk, dv, is_causal=True)[:, :, : L // 2]
            same(got, ref[:, :, : L // 2].to(dt), 3e-2, 3e-2)


def test_attention_mask_beyond_512_keys():
    """
    Source: vllm-project/vllm-ascend#15503 -- a bool [1, 1, 1, S] mask is ignored past key position 512
    Kind: attention-mask (broadcast mask read with a fixed tile limit)
    """
    g = torch.Generator().manual_seed(13)
    q, k, v = (
        torch.randn(1, 4, 1, 8, generator=g),
        torch.randn(1, 4, 900, 8, generator=g),
        torch.randn(1, 4, 900, 8, generator=g),
    )
    m = torch.zeros(1, 1, 1, 900, dtype=torch.bool)
    m[..., :600] = True
    ref = F.scaled_dot_product_attention(q, k[:, :, :600], v[:, :, :600])
    same(F.scaled_dot_product_attention(dev(q), dev(k), dev(v), attn_mask=dev(m)), ref)
    fm = torch.zeros(1, 1, 1, 900).masked_fill(~m, -INF)
    same(F.scaled_dot_product_attention(dev(q), dev(k), dev(v), attn_mask=dev(fm)), ref)


# --------------------------------------------------------------------------------- autograd


def test_gradient_of_inplace_masked_activation():
    """
    Source: pytorch/xla#1718 -- zeroing part of an activation in place gives a wrong weight gradient
    Kind: autograd-inplace (version and view tracking in backward)
    """
    torch.manual_seed(0)
    lin = nn.Linear(6, 8)
    dlin, x = dev(copy.deepcopy(lin)), torch.ones(3, 6)

    def run(layer, inp):
        y = layer(inp)
        y[:, :5] = 0
        y[:, 6:].mul_(2)
        y.sum().backward()
        return layer.weight.grad

    same(run(dlin, dev(x)), run(lin, x))


def test_gradient_arriving_as_expanded_scalar():
    """
    Source: pytorch/pytorch#180201 -- grad(y.sum(), x) has zero rows although grad(y, x, ones) is right
    Source: pytorch/pytorch#79784 -- backward of a summed MSE of a plain vector fails
    Kind: strided-input (backward kernel receives a zero-stride gradient)
    """
    g = torch.Generator().manual_seed(14)
    w1, w2, x = torch.randn(16, 3, generator=g), torch.randn(1, 16, generator=g), torch.randn(64, 3, generator=g)
    f = lambda t, a, b: (torch.sin(t @ a.t()) @ b.t()).squeeze(-1)
    dx, cx = dev(x).requires_grad_(), x.clone().requires_grad_()
    ref = torch.autograd.grad(f(cx, w1, w2).sum(), cx)[0]
    same(torch.autograd.grad(f(dx, dev(w1), dev(w2)).sum(), dx)[0], ref)
    y = f(dx, dev(w1), dev(w2))
    same(torch.autograd.grad(y, dx, torch.ones_like(y))[0], ref)
    p = dev(torch.tensor([1.0, 3.0])).requires_grad_()
    nn.MSELoss(reduction="sum")(p, dev(torch.zeros(2))).backward()
    same(p.grad, torch.tensor([2.0, 6.0]))


def test_second_derivative_of_linear():
    """
    Source: pytorch/pytorch#105834 -- linear has no double backward
    Source: pytorch/pytorch#108409 -- gradient-matching losses cannot be back-propagated
    Kind: double-backward (custom forward/backward pair without a second derivative)
    """
    g = torch.Generator().manual_seed(15)
    w, b, x = torch.randn(2, 3, generator=g), torch.randn(2, generator=g), torch.randn(4, 3, generator=g)

    def pen(w, b, x):
        y = torch.tanh(F.linear(x, w, b)).square().sum()
        gx, gw = torch.autograd.grad(y, (x, w), create_graph=True)
        (gx.square().sum() + gw.square().sum()).backward()
        return w.grad, b.grad, x.grad

    got = pen(*(dev(t).requires_grad_() for t in (w, b, x)))
    ref = pen(*(t.clone().requires_grad_() for t in (w, b, x)))
    for a, r in zip(got, ref, strict=True):
        same(a, r, 1e-3, 1e-4)


# ------------------------------------------------------------------------- copies, asynchrony


def test_non_blocking_upload_of_short_lived_sources():
    """
    Source: pytorch/pytorch#189690 -- a non_blocking upload reads the source after it was freed
    Kind: async-lifetime (pageable source not kept alive or not staged)
    """
    outs, refs = [], []
    for i in range(32):
        src = torch.full((1000,), float(i))
        outs.append(src.to(DEVICE, non_blocking=True))
        del src
        junk = torch.full((1000,), -777.0)  # likely to reuse the freed block
        refs.append(float(i))
    del junk
    for o, r in zip(outs, refs, strict=True):
        same(o, torch.full((1000,), r))


def test_non_blocking_upload_then_use():
    """
    Source: pytorch/pytorch#139550 -- values are random right after .to(device, non_blocking=True)
    Kind: async-ordering (consumer not ordered after the copy)
    """
    for n in (10, 4097):
        a = torch.arange(n)
        x = a.to(DEVICE, non_blocking=True)
        assert torch.equal(x, a.clone().to(DEVICE))
        assert int(x.sum()) == n * (n - 1) // 2
        src = a.clone()
        y = torch.empty_like(src, device=DEVICE).copy_(src, non_blocking=True)
        torch.get_device_module(DEVICE).synchronize()
        src.fill_(-1)  # after synchronise this must not show
        same(y, a)
