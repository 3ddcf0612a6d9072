"""Cases from public problem reports on PyTorch devices: strides, outputs, views and aliasing, storage offsets.

Each states the right value by assert, with the CPU as the reference. "Source" names the report, "Kind" the fault: the
same fault usually sits in every sibling operator. FL_TEST_DEVICE chooses the device (fl:1).
"""

# ruff: noqa: E501, E731
from __future__ import annotations

import copy
import io
import warnings

import pytest
import torch
import torch.nn.functional as F
from device_under_test import DEVICE, INF, NAN, dev, same
from torch import nn

# --------------------------------------------------------------------------- strides: inputs


def test_where_condition_transposed():
    """
    Source: pytorch/pytorch#150967 -- `where` reads a transposed condition as if it were row-major
    Kind: strided-input (kernel addresses storage linearly and ignores strides)
    """
    cond = torch.tensor([[True, False, True], [False, False, True]]).t()
    a = torch.arange(6).reshape(3, 2)
    # strides must survive the move, so transpose again on the device
    dcond = dev(cond.t().contiguous()).t()
    same(torch.where(dcond, dev(a), -7), torch.where(cond, a, -7))
    same(torch.where(dcond, dev(a), dev(-a)), torch.where(cond, a, -a))


@pytest.mark.parametrize(
    "fn",
    [
        F.softplus,
        F.selu,
        F.silu,
        F.gelu,
        F.hardswish,
        lambda t: F.threshold(t, 0.1, 20.0),
        lambda t: F.leaky_relu(t, 0.3),
    ],
    ids=["softplus", "selu", "silu", "gelu", "hardswish", "threshold", "leaky_relu"],
)
def test_activation_after_moveaxis(fn):
    """
    Source: pytorch/pytorch#131736 -- activations return zeros or mixed-up values after moveaxis
    Source: pytorch/pytorch#139006 -- silu gives random values, zeros or NaN on a non-contiguous input
    Kind: strided-input (kernel addresses storage linearly and ignores strides)
    """
    x = torch.linspace(-2, 2, 24).view(2, 3, 4)
    dx = dev(x)
    same(fn(dx.moveaxis(0, 2)), fn(x.moveaxis(0, 2)))
    same(fn(dx[:, ::2, 1:]), fn(x[:, ::2, 1:]))


def test_ternary_inplace_on_transposed_self():
    """
    Source: pytorch/pytorch#118115 -- addcdiv_ on a transposed tensor writes wrong values, so optimisers drift
    Kind: strided-input (in-place result of a strided self is not scattered back)
    """
    g = torch.Generator().manual_seed(0)
    base = torch.rand(2, 3, generator=g)
    y, z = torch.rand(2, 3, generator=g).t(), torch.rand(3, 2, generator=g) + 0.5
    for name in ("addcdiv_", "addcmul_"):
        ref, got = base.clone(), dev(base)
        getattr(ref.t(), name)(y, z, value=0.7)
        getattr(got.t(), name)(dev(y), dev(z), value=0.7)
        same(got, ref)


def test_predicate_on_column_slice_stays_in_bounds():
    """
    Source: pytorch/pytorch#183419 -- isfinite on a column slice of a large matrix writes past its output buffer
    Kind: out-of-bounds-write (output sized for the view, kernel walks the whole base)
    """
    x = torch.zeros(4096, 96)
    x[::3, 7] = INF
    x[1::5, 9] = NAN
    guards = [torch.full((4096, 10), 3.0, device=DEVICE) for _ in range(3)]
    dx = dev(x)
    got = [torch.isfinite(dx[:, 4:14]), torch.isinf(dx[:, 4:14]), torch.isnan(dx[:, 4:14])]
    guards += [torch.full((4096, 10), 3.0, device=DEVICE) for _ in range(3)]
    for g_, f in zip(got, (torch.isfinite, torch.isinf, torch.isnan), strict=True):
        same(g_, f(x[:, 4:14]))
    assert all(bool((g == 3.0).all()) for g in guards)


def test_linear_on_zero_stride_batch():
    """
    Source: pytorch/pytorch#167154 -- F.linear aborts on an input whose batch stride is 0
    Kind: strided-input (buffer size computed from shape, not from shape and strides)
    """
    g = torch.Generator().manual_seed(1)
    base, w, b = torch.randn(7 * 6, generator=g), torch.randn(4, 6, generator=g), torch.randn(4, generator=g)
    x = base.as_strided((5, 7, 6), (0, 6, 1))
    dx = dev(base).as_strided((5, 7, 6), (0, 6, 1))
    same(F.linear(dx, dev(w), dev(b)), F.linear(x, w, b))
    same(F.linear(dev(base).view(1, 7, 6).expand(5, 7, 6), dev(w)), F.linear(x, w))


def test_linear_with_strided_weight():
    """
    Source: pytorch/pytorch#162779 -- F.linear is wrong when the weight is a non-contiguous view
    Kind: strided-input (fast path skips the contiguity check of its second operand)
    """
    g = torch.Generator().manual_seed(2)
    x, w = torch.randn(3, 4, generator=g), torch.randn(10, 8, generator=g)
    dw = dev(w)
    same(F.linear(dev(x), dw[::2, ::2]), F.linear(x, w[::2, ::2]))
    same(F.linear(dev(x), dw[:4, :5].t()), F.linear(x, w[:4, :5].t()))


def test_bucketize_transposed_input():
    """
    Source: flagos-ai/FlagGems#4831 -- bucketize returns uninitialised memory for a transposed input
    Kind: strided-input (kernel fills a flattened copy, the untouched original is returned)
    """
    edges = torch.tensor([0.0, 1.0, 2.0])
    x = torch.tensor([[-1.0, 0.5, 1.5], [2.5, 0.0, 1.0]])
    same(torch.bucketize(dev(x).t(), dev(edges)), torch.bucketize(x.t(), edges))
    same(torch.bucketize(dev(x)[:, ::2], dev(edges), right=True), torch.bucketize(x[:, ::2], edges, right=True))


@pytest.mark.parametrize(
    "name", ["sum", "mean", "prod", "max", "min", "amax", "amin", "argmax", "argmin", "any", "std"]
)
def test_full_reduction_of_a_view(name):
    """
    Source: flagos-ai/FlagGems#5439 -- full reductions read the elements that a slice left out
    Source: flagos-ai/FlagGems#1786 -- sum and mean are wrong for non-contiguous input
    Source: flagos-ai/FlagGems#273 -- max is wrong for a strided slice
    Kind: strided-input (kernel addresses storage linearly and ignores strides)
    """
    base = torch.full((4, 6), 1e4)
    base[1::2] = -1e4
    base[:, :3] = torch.tensor([1.5, -0.5, 2.0])
    base[2, 1] = 0.25
    view, dview = base[:, :3], dev(base)[:, :3]
    same(getattr(torch, name)(dview), getattr(torch, name)(view))
    same(getattr(torch, name)(dev(base).t()[:3]), getattr(torch, name)(base.t()[:3]))


def test_scatter_add_with_expanded_index():
    """
    Source: flagos-ai/FlagGems#6017 -- a 2-D scatter_add_ fast path faults when the index is an expanded column
    Kind: strided-input (zero-stride index read as contiguous)
    """
    src = torch.arange(40.0).reshape(10, 4)
    col = (torch.arange(10) % 3).view(10, 1)
    ref = torch.zeros(3, 4).scatter_add_(0, col.expand(10, 4), src)
    got = torch.zeros(3, 4, device=DEVICE).scatter_add_(0, dev(col).expand(10, 4), dev(src))
    same(got, ref)
    got_t = torch.zeros(4, 3, device=DEVICE).t().scatter_add_(0, dev(col).expand(10, 4), dev(src.t().contiguous()).t())
    same(got_t, ref)


def test_cat_and_stack_of_interleaved_slices():
    """
    Source: pytorch/pytorch#78043 -- cat/stack of every-second-element slices (rotary embedding) fails
    Source: pytorch/pytorch#91308 -- cat into or from a non-default memory layout is wrong
    Kind: strided-input (multi-tensor op with several differently strided inputs)
    """
    x = torch.arange(48.0).reshape(2, 3, 8)
    dx = dev(x)
    same(
        torch.stack((-dx[..., 1::2], dx[..., ::2]), -1).flatten(-2),
        torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2),
    )
    same(
        torch.cat([dx.transpose(1, 2), dx[:, :2].permute(0, 2, 1)], -1),
        torch.cat([x.transpose(1, 2), x[:, :2].permute(0, 2, 1)], -1),
    )


def test_tensor_from_sliced_numpy_array():
    """
    Source: pytorch/pytorch#85967 -- a tensor built on the device from a sliced NumPy array has shifted rows
    Kind: strided-copy (host-to-device copy of a non-contiguous source)
    """
    np = pytest.importorskip("numpy")
    a = np.arange(12).reshape(3, 4)[:, :2]
    same(torch.tensor(a, device=DEVICE), torch.tensor(a))
    same(
        torch.from_numpy(np.arange(12.0).reshape(3, 4))[:, 1::2].to(DEVICE),
        torch.from_numpy(np.arange(12.0).reshape(3, 4))[:, 1::2],
    )


# ------------------------------------------------------------------ strides and out=: outputs


def test_bitwise_ops_into_strided_out():
    """
    Source: pytorch/pytorch#146085 -- bitwise ops write wrong elements when the output is not contiguous
    Kind: strided-output (result stored linearly into a strided output)
    """
    a, b = torch.arange(6).reshape(2, 3), torch.tensor([[5, 3, 1], [7, 0, 2]])
    for fn in (torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor):
        buf = torch.full((3, 4), -1, device=DEVICE)
        fn(dev(a), dev(b), out=buf[:, :2].t())
        ref = torch.full((3, 4), -1)
        fn(a, b, out=ref[:, :2].t())
        same(buf, ref)


def test_loss_and_elu_of_strided_inputs():
    """
    Source: pytorch/pytorch#125696 -- mse_loss with reduction none is wrong on strided tensors
    Source: pytorch/pytorch#125692 -- ELU is wrong when its input, and so its output, is strided
    Kind: strided-output (output inherits the input's strides, kernel stores it as contiguous)
    """
    x, y = torch.linspace(-3, 3, 12).view(3, 4), torch.linspace(2, -1, 12).view(4, 3)
    same(F.mse_loss(dev(x).t(), dev(y), reduction="none"), F.mse_loss(x.t(), y, reduction="none"))
    same(F.elu(dev(x).t(), 0.7), F.elu(x.t(), 0.7))


def test_addmm_with_out():
    """
    Source: MooreThreads/torch_musa#51 -- addmm with out= leaves a zero matrix
    Kind: out-argument (result computed but not delivered into out)
    """
    g = torch.Generator().manual_seed(3)
    c, a, b = torch.randn(3, 5, generator=g), torch.randn(3, 4, generator=g), torch.randn(4, 5, generator=g)
    ref = torch.addmm(c, a, b, beta=0.5, alpha=2)
    out = torch.zeros(3, 5, device=DEVICE)
    ret = torch.addmm(dev(c), dev(a), dev(b), beta=0.5, alpha=2, out=out)
    assert ret is out
    same(out, ref)
    strided = torch.zeros(5, 3, device=DEVICE).t()
    torch.addmm(dev(c), dev(a), dev(b), beta=0.5, alpha=2, out=strided)
    same(strided, ref)


def test_out_is_a_view_of_a_larger_tensor():
    """
    Source: tinygrad/tinygrad#17210 -- out= pointing into a view never reaches the base tensor
    Kind: out-argument (out is a view; base must change, the rest must not)
    """
    base = torch.full((3, 4), 9.0, device=DEVICE)
    ptr = base.data_ptr()
    torch.add(dev(torch.arange(4.0)), 1.0, out=base[1])
    torch.sub(dev(torch.arange(3.0)), 1.0, out=base[:, 3])
    ref = torch.full((3, 4), 9.0)
    ref[1] = torch.arange(4.0) + 1
    ref[:, 3] = torch.arange(3.0) - 1
    same(base, ref)
    assert base.data_ptr() == ptr


def test_reduction_out_keeps_its_shape_rules():
    """
    Source: flagos-ai/Torch-FL#283 -- sum.out hands back a matrix for a scalar reduction; nansum.out fails
    Kind: out-argument (out variants of reductions get the wrong shape or drop out)
    """
    x = torch.tensor([[1.0, NAN, 2.0], [3.0, 4.0, NAN]])
    out = torch.empty(0, device=DEVICE)
    torch.sum(dev(torch.nan_to_num(x)), dim=(0, 1), out=out)
    same(out, torch.tensor(10.0))
    out2 = torch.empty(0, device=DEVICE)
    assert torch.nansum(dev(x), 1, out=out2) is out2
    same(out2, torch.tensor([3.0, 7.0]))
    out3 = torch.empty(5, 5, device=DEVICE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # resizing a filled out only warns
        torch.mean(dev(torch.nan_to_num(x)), dim=0, keepdim=True, out=out3)
    same(out3, torch.tensor([[2.0, 2.0, 1.0]]))


# ------------------------------------------------------------------- views, aliasing, in-place


def test_inplace_through_stacked_views():
    """
    Source: tinygrad/tinygrad#9371 -- in-place ops on views do not reach the base (breaks DDP gradient buckets)
    Kind: view-aliasing (write through a view of a view)
    """

    def prog(t):
        t[1:, ::2].t()[0].mul_(10)
        t.view(-1)[3:7].add_(0.5)
        t.unfold(1, 2, 2)[0, 1].zero_()
        t.diagonal().sub_(1)
        return t

    x = torch.arange(20.0).reshape(4, 5)
    same(prog(dev(x)), prog(x.clone()))


def test_detach_still_shares_memory():
    """
    Source: tinygrad/tinygrad#9522 -- the view relation is lost by detach(), so in-place updates vanish
    Kind: view-aliasing (alias kept through detach, .data and requires_grad)
    """
    w = torch.ones(4, device=DEVICE, requires_grad=True)
    w.detach()[1:3].mul_(5)
    w.data[3:].fill_(-2)
    same(w, torch.tensor([1.0, 5.0, 5.0, -2.0]))
    assert w.detach().data_ptr() == w.data_ptr()


def test_split_chunk_unbind_alias_the_source():
    """
    Source: pytorch/xla#3072 -- pieces returned by split no longer follow the source tensor
    Kind: view-aliasing (multi-output view ops must be views)
    """
    a = torch.arange(6, device=DEVICE)
    lo, hi = torch.split(a, 3)
    mid = a.chunk(3)[1]
    parts = a.view(2, 3).unbind(0)
    a[0], a[3] = -1, -2
    mid[0] = 40
    same(lo, torch.tensor([-1, 1, 40]))
    same(hi, torch.tensor([-2, 4, 5]))
    same(parts[1], torch.tensor([-2, 4, 5]))


VIEW_OPS = {
    "alias": lambda t: t.view_as(t),
    "t": lambda t: t.t(),
    "narrow": lambda t: t.narrow(1, 1, 2),
    "select": lambda t: t.select(0, 1),
    "slice": lambda t: t[1:, ::2],
    "expand": lambda t: t[:1].expand(2, 4),
    "diagonal": lambda t: t.diagonal(1),
    "unfold": lambda t: t.unfold(1, 2, 1),
    "as_strided": lambda t: t.as_strided((2, 2), (2, 1), 1),
    "squeeze": lambda t: t[:, :1].squeeze(1),
    "unsqueeze": lambda t: t.unsqueeze(1),
    "permute": lambda t: t.permute(1, 0),
    "movedim": lambda t: t.movedim(0, 1),
    "view_dtype": lambda t: t.view(torch.int32),
    "reshape": lambda t: t.reshape(2, 6),
    "unflatten": lambda t: t.unflatten(1, (2, 2)),
    "swapaxes": lambda t: t.swapaxes(0, 1),
    "ravel": lambda t: t.ravel(),
}


@pytest.mark.parametrize("name", list(VIEW_OPS))
def test_view_ops_are_views_not_copies(name):
    """
    Source: pytorch/xla#916 -- each view-like op has to be checked to really be a view
    Source: intel/torch-xpu-ops#206 -- view and metadata ops break when they go through a CPU fallback
    Kind: view-aliasing (view op routed to a copying fallback)
    """
    op = VIEW_OPS[name]
    x = torch.arange(12.0).reshape(3, 4)
    dx = dev(x)
    v, ref = op(dx), op(x)
    same(v, ref)
    assert v.stride() == ref.stride() and v.storage_offset() == ref.storage_offset()
    assert v.untyped_storage().data_ptr() == dx.untyped_storage().data_ptr()


def test_data_rebinding_is_not_an_inplace_update():
    """
    Source: pytorch/xla#3392 -- after x.data = something, old views of x are wrongly updated
    Kind: view-aliasing (rebinding storage versus writing it)
    """
    x = torch.zeros(6, device=DEVICE)
    y = x.view(2, 3)
    x.data.add_(1.0)
    same(y, torch.ones(2, 3))
    x.data = x.data + 5.0
    same(x, torch.full((6,), 6.0))
    same(y, torch.ones(2, 3))


def test_copy_into_a_corner_of_a_padded_buffer():
    """
    Source: pytorch/xla#501 -- copy_ and assignment into a slice do nothing, so padded batches stay zero
    Kind: view-aliasing (write through a slice)
    """
    img = torch.arange(12.0).reshape(3, 4)
    for src in (img, dev(img)):  # host and device sources
        buf = torch.zeros(2, 5, 5, device=DEVICE)
        buf[0, : img.shape[0], : img.shape[1]].copy_(src)
        buf[1, 1:4] = 7
        ref = torch.zeros(2, 5, 5)
        ref[0, :3, :4] = img
        ref[1, 1:4] = 7
        same(buf, ref)


def test_select_then_unsqueeze_keeps_the_offset():
    """
    Source: pytorch/xla#7859 -- unsqueeze of a selected element forgets the slice offset
    Kind: storage-offset (offset dropped when a view is re-viewed)
    """
    x = torch.randn(3, 2, generator=torch.Generator().manual_seed(4))
    dx = dev(x)
    same(dx[2].unsqueeze(0), x[2].unsqueeze(0))
    same(dx[1, None, 1:] * 2, x[1, None, 1:] * 2)
    same(dx.chunk(3)[1].squeeze(0).unsqueeze(-1) + 0, x[1].unsqueeze(-1))


def test_scalar_assignment_to_one_element():
    """
    Source: tinygrad/tinygrad#10464 -- assigning a Python number to a single element crashes (nn.init.dirac_)
    Kind: setitem (scalar store into a 0-dim view)
    """
    w = torch.zeros(4, 2, 3, 3, device=DEVICE)
    w[0, 1, 2, 0] = 3
    w[-1, 0][1, 1] = True
    ref = torch.zeros(4, 2, 3, 3)
    ref[0, 1, 2, 0], ref[3, 0, 1, 1] = 3, 1
    same(w, ref)
    same(nn.init.dirac_(torch.empty(4, 2, 3, 3, device=DEVICE)), nn.init.dirac_(torch.empty(4, 2, 3, 3)))


def test_loop_of_reduced_values_into_elements():
    """
    Source: microsoft/DirectML#696 -- a loop storing (patch * kernel).sum() into elements differs from CPU
    Kind: setitem (0-dim device tensor stored into a 0-dim view)
    """

    def conv(f, k):
        out = torch.zeros(2, 2, device=f.device)
        for i in range(2):
            for j in range(2):
                out[i, j] = (f[i : i + 2, j : j + 2] * k).sum()
        return out

    f, k = torch.arange(9.0).reshape(3, 3), torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    same(conv(dev(f), dev(k)), conv(f, k))


def test_int64_element_select():
    """
    Source: huggingface/optimum-habana#961 -- indexing element i of an int64 range returns element 2*i
    Kind: dtype-width (address computed with a 4-byte stride for an 8-byte element)
    """
    for dtype in (
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.float64,
        torch.float16,
        torch.bool,
    ):
        x = torch.tensor([1, 0, 1, 1, 0, 0, 1], dtype=dtype) if dtype is torch.bool else torch.arange(7).to(dtype)
        assert [dev(x)[i].item() for i in range(7)] == x.tolist(), dtype
        same(dev(x)[5], x[5])


# ----------------------------------------------------------------------------- storage offset


def test_layer_norm_of_row_slice():
    """
    Source: pytorch/pytorch#131750 -- layer_norm of rows 1..2 normalises rows 0..1 instead
    Source: pytorch/pytorch#133520 -- batch norm of a sliced input returns another slice's result
    Kind: storage-offset (kernel starts at the storage base)
    """
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(5))
    w, b = torch.linspace(0.5, 2, 4), torch.linspace(-1, 1, 4)
    same(F.layer_norm(dev(x)[2:4], (4,), dev(w), dev(b)), F.layer_norm(x[2:4], (4,), w, b))
    bn = nn.BatchNorm1d(4)
    same(dev(copy.deepcopy(bn))(dev(x)[1:4]), bn(x[1:4]))


def test_channels_last_with_offset():
    """
    Source: pytorch/pytorch#174345 -- BatchNorm2d and avg_pool2d are wrong for channels_last tensors that start at an offset
    Kind: storage-offset (memory-format fast path forgets the offset)
    """
    tok = torch.randn(2, 17, 6, generator=torch.Generator().manual_seed(6))
    x, dx = (t[:, 1:].unflatten(1, (4, 4)).permute(0, 3, 1, 2) for t in (tok, dev(tok)))
    bn = nn.BatchNorm2d(6).eval()
    same(dev(copy.deepcopy(bn))(dx), bn(x))
    same(F.avg_pool2d(dx, 2), F.avg_pool2d(x, 2))
    same(F.max_pool2d(dx, 2), F.max_pool2d(x, 2))
    w = torch.randn(3, 6, 3, 3, generator=torch.Generator().manual_seed(7))
    same(F.conv2d(dx, dev(w), padding=1), F.conv2d(x, w, padding=1))


def test_matmul_from_unaligned_offset():
    """
    Source: intel/torch-xpu-ops#1656 -- attention inputs at an odd storage offset give wrong results
    Kind: storage-offset (vector loads assume an aligned base address)
    """
    g = torch.Generator().manual_seed(8)
    for dtype, tol in ((torch.float32, 1e-4), (torch.float16, 2e-2)):
        flat = torch.randn(2 * 3 * 8 * 16 + 997, generator=g).to(dtype)
        shape, strides = (2, 3, 8, 16), (384, 128, 16, 1)
        q, dq = (t.as_strided(shape, strides, 997) for t in (flat, dev(flat)))
        same(dq @ dq.transpose(-1, -2), (q.float() @ q.float().transpose(-1, -2)).to(dtype), tol, tol)
        same(torch.softmax(dq, -1), torch.softmax(q, -1), tol, tol)


def test_loaded_view_moves_with_its_offset():
    """
    Source: pytorch/pytorch#86052 -- a checkpointed slice moved to the device shows the start of the storage instead
    Kind: storage-offset (host-to-device copy ignores the source offset)
    """
    buf = io.BytesIO()
    full = torch.arange(10)
    torch.save({"tok": full[7], "part": full[3:6], "col": full.view(2, 5)[:, 4]}, buf)
    buf.seek(0)
    sd = torch.load(buf, map_location="cpu")
    same(sd["tok"].to(DEVICE), torch.tensor(7))
    same(sd["part"].to(DEVICE), torch.tensor([3, 4, 5]))
    same(sd["col"].to(DEVICE), torch.tensor([4, 9]))
