"""Cases from public problem reports on PyTorch devices: CPU scalars, dtypes, empty tensors, indexing, ordering and NaN.

Each states the right value by assert, with the CPU as the reference. "Source" names the report, "Kind" the fault: the
same fault usually sits in every sibling operator. FL_TEST_DEVICE chooses the device (fl:1).
"""

# ruff: noqa: E501, E731
from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from device_under_test import DEVICE, INF, NAN, dev, same

# ----------------------------------------------------------------- CPU scalar meets device


def test_cpu_zero_dim_view_operand():
    """
    Source: pytorch/pytorch#187117 -- device tensor op cpu_table[4] silently uses cpu_table[0]
    Source: pytorch/pytorch#191929 -- the same for mul/add/sub with any 0-dim CPU view
    Source: pytorch/pytorch#193057 -- both operand orders read the first value of the CPU storage
    Source: pytorch/pytorch#186580 -- multiplying by a CPU 0-dim tensor faults the device
    Kind: cpu-scalar-operand (0-dim CPU tensor mixed with a device tensor; its offset is dropped)
    """
    table = torch.tensor([9.0, 2.0, 7.0, 0.5])
    x = torch.tensor([[1.0, -2.0], [4.0, 8.0]])
    for i in range(4):
        s = table[i]
        for fn in (torch.mul, torch.add, torch.sub, torch.div, torch.pow, torch.atan2):
            same(fn(dev(x), s), fn(x, s))
        same(s - dev(x), s - x)
        same(dev(x).div_(s), x / s)
        same(dev(x) > s, x > s)


def test_wrapped_number_keeps_its_sign():
    """
    Source: pytorch/pytorch#152582 -- copysign with a Python number ignores the number's sign
    Source: pytorch/pytorch#79835 -- int32 range plus a number is garbage from the second element on
    Kind: cpu-scalar-operand (Python number wrapped into a CPU tensor and mis-read)
    """
    x = torch.tensor([1.0, -2.0, 3.0])
    same(torch.copysign(dev(x), -2.0), torch.copysign(x, -2.0))
    same(torch.arange(10, dtype=torch.int32, device=DEVICE) + 5, torch.arange(10, dtype=torch.int32) + 5)
    same(torch.remainder(7, dev(torch.tensor([2, 3, 4]))), torch.remainder(7, torch.tensor([2, 3, 4])))
    same(2.0 ** dev(x), 2.0**x)


def test_device_zero_dim_shift_amount():
    """
    Source: triton-lang/triton-ascend#472 -- shifting by a 0-dim device tensor kills the device context
    Kind: cpu-scalar-operand (0-dim device tensor as second operand)
    """
    q = torch.tensor([0x76543210, 0x0FEDCBA9], dtype=torch.int32)
    order = torch.tensor([0, 4, 1])
    for j in range(3):
        same((dev(q) >> (dev(order)[j] * 4)) & 0xF, (q >> (order[j] * 4)) & 0xF)
        same(dev(q) << dev(order)[j], q << order[j])


# ------------------------------------------------------------------- dtypes and arithmetic


def test_float_times_bool_stays_float():
    """
    Source: microsoft/DirectML#737 -- float tensor times bool tensor silently becomes a bool tensor
    Source: microsoft/DirectML#702 -- filling a causal mask with the lowest float overflows an 8-bit type
    Kind: type-promotion (result dtype taken from one operand)
    """
    low = torch.finfo(torch.float32).min
    x, m = torch.full((4,), low), torch.tensor([True, False, True, False])
    same(dev(x) * dev(m), x * m)
    y = dev(x)
    y *= dev(m)
    same(y, x * m)
    same(torch.zeros(4, device=DEVICE).masked_fill(dev(m), low), torch.zeros(4).masked_fill(m, low))


def test_bool_arithmetic_counts():
    """
    Source: pytorch/pytorch#78020 -- True tensor times 2 gives 255 or crashes
    Source: pytorch/pytorch#79849 -- summing ten True tensors gives a random huge number
    Kind: type-promotion (bool treated as a byte of storage)
    """
    t = torch.tensor(True, device=DEVICE)
    assert (t * 2).item() == 2 and (t + 1).item() == 2 and (t * 0).item() == 0
    assert sum(torch.tensor(True, device=DEVICE) for _ in range(10)).item() == 10
    m = torch.tensor([[True, True, False], [True, True, True]])
    same(dev(m).sum(), m.sum())
    same(dev(m).sum(0), m.sum(0))
    same(dev(m).float().mean(1), m.float().mean(1))


def test_integer_inputs_promote_to_float():
    """
    Source: flagos-ai/Torch-FL#276 -- log, erf, atan2 and friends return int64 for int64 input
    Source: pytorch/xla#2499 -- atan2 lacks integer-to-float promotion
    Kind: type-promotion (third-party kernel keeps the integer dtype)
    """
    i = torch.tensor([1, 2, 3, 4])
    for fn in (
        torch.log,
        torch.log1p,
        torch.log2,
        torch.erf,
        torch.sqrt,
        torch.exp,
        torch.sigmoid,
        torch.tanh,
        torch.sin,
        torch.rad2deg,
        torch.digamma,
        torch.special.i0,
    ):
        same(fn(dev(i)), fn(i))
        same(fn(dev(i.to(torch.uint8))), fn(i.to(torch.uint8)))
    same(torch.atan2(dev(i), dev(i.flip(0))), torch.atan2(i, i.flip(0)))
    same(dev(i) / dev(i.flip(0)), i / i.flip(0))
    same(torch.true_divide(dev(i), 2), torch.true_divide(i, 2))


def test_cumsum_of_small_dtypes():
    """
    Source: pytorch/pytorch#96614 -- cumsum of a bool tensor is wrong
    Source: pytorch/pytorch#125318 -- cumsum of 128 True values overflows an 8-bit accumulator
    Source: pytorch/pytorch#90635 -- cumsum returns its input for int64, int16 and int8
    Source: pytorch/pytorch#92329 -- cumsum refuses a negative dim
    Kind: accumulator-dtype (accumulates in the input dtype)
    """
    m = torch.ones(300, 2, dtype=torch.bool)
    same(dev(m).cumsum(0), m.cumsum(0))
    for dtype in (torch.int8, torch.int16, torch.int32, torch.uint8):
        x = torch.full((2, 200), 3, dtype=dtype)
        same(dev(x).cumsum(-1), x.cumsum(-1))
        same(dev(x).cumsum(-2, dtype=torch.int32), x.cumsum(-2, dtype=torch.int32))
    same(dev(torch.ones(5000, dtype=torch.float16)).sum(), torch.tensor(5000.0, dtype=torch.float16))


def test_uint8_sum_widens_and_wraps():
    """
    Source: MooreThreads/torch_musa#86 -- sum of a uint8 tensor is refused
    Source: pytorch/pytorch#179415 -- sum with dtype=uint8 saturates at 255 instead of wrapping
    Kind: accumulator-dtype (default widening and explicit narrow dtype)
    """
    x = torch.tensor([[255, 2, 1], [5, 3, 6]], dtype=torch.uint8)
    same(dev(x).sum(), torch.tensor(272))
    same(dev(x).sum(dtype=torch.uint8), torch.tensor(16, dtype=torch.uint8))
    same(dev(x).prod(1), x.prod(1))


def test_large_integer_modulo_and_division():
    """
    Source: pytorch/pytorch#154171 -- a % b is wrong for integers above 2**24
    Source: pytorch/pytorch#94757 -- remainder of integers is computed through float
    Source: pytorch/pytorch#84995 -- floor division of int64 aborts the process
    Kind: integer-through-float (integer math done in float32)
    """
    a = torch.tensor([42309891, -42309891, 2**53 + 1, -7, 16798993])
    b = torch.tensor([31, 31, 10, -3, 1000])
    for fn in (
        torch.remainder,
        torch.fmod,
        torch.floor_divide,
        lambda p, q: torch.div(p, q, rounding_mode="trunc"),
        lambda p, q: torch.div(p, q, rounding_mode="floor"),
    ):
        same(fn(dev(a), dev(b)), fn(a, b))
        same(fn(dev(a), 31), fn(a, 31))
    assert (torch.as_tensor(42309891, device=DEVICE) % 31).item() == 42309891 % 31


def test_int64_beyond_32_bits():
    """
    Source: pytorch/pytorch#78848 -- adding 2**32 to an int64 tensor changes nothing
    Kind: integer-width (int64 silently narrowed to int32)
    """
    x = torch.arange(6)
    same(dev(x) + (1 << 32), x + (1 << 32))
    big = torch.tensor([2**62, -(2**62), 2**40 + 3])
    same(dev(big) // 3, big // 3)
    same(dev(big).clone(), big)
    same(dev(big).max(), big.max())
    same(dev(big) * 3, big * 3)  # wraps as CPU does
    same(torch.sort(dev(big))[0], torch.sort(big)[0])


def test_integer_matmul_and_bool_scans():
    """
    Source: flagos-ai/Torch-FL#153 -- int64 matmul, bool index_add, bool cummax and randint(high=1) fail to compile
    Kind: dtype-coverage (routed to a kernel that cannot take the dtype instead of to the next route)
    """
    a, b = torch.arange(12).reshape(3, 4), torch.arange(8).reshape(4, 2)
    same(dev(a) @ dev(b), a @ b)
    same(
        torch.addmm(dev(torch.ones(3, 2, dtype=torch.int64)), dev(a), dev(b)),
        torch.addmm(torch.ones(3, 2, dtype=torch.int64), a, b),
    )
    m = torch.tensor([False, True, False, True])
    for fn in (torch.cummax, torch.cummin):
        same(fn(dev(m), 0)[0], fn(m, 0)[0])
    same(
        dev(m).index_add(0, dev(torch.tensor([0, 2])), dev(torch.tensor([True, False]))),
        m.index_add(0, torch.tensor([0, 2]), torch.tensor([True, False])),
    )
    assert torch.randint(1, (5,), device=DEVICE).tolist() == [0] * 5


@pytest.mark.parametrize(
    "dst", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.int32, torch.bool, torch.complex64]
)
def test_dtype_cast_on_device(dst):
    """
    Source: torch-spyre/torch-spyre#2847 -- .to(dtype) of a device tensor silently gives wrong values
    Kind: dtype-cast (reinterprets instead of converting)
    """
    x = torch.tensor([[0.0, -1.75, 2.5, 100.25], [3.0, 0.5, -0.0, 7.0]])
    same(dev(x).to(dst), x.to(dst))
    same(dev(x).t().to(dst), x.t().to(dst))
    same(x.to(DEVICE, dst), x.to(dst))  # dtype and device in one call
    same(dev(x.to(dst)).to(torch.float32), x.to(dst).to(torch.float32))


def test_float64_is_not_float32_in_disguise():
    """
    Source: microsoft/DirectML#398 -- float64 matmul has float32 rounding errors
    Kind: silent-precision-loss (double computed as float)
    """
    a = torch.tensor([[1.0, 1e-9], [3.0, 1.0]], dtype=torch.float64)
    ref = a @ a
    got = (dev(a) @ dev(a)).cpu()
    assert got.dtype == torch.float64 and torch.equal(got, ref)
    assert (dev(torch.tensor(1.0, dtype=torch.float64)) + 1e-12).item() == 1.0 + 1e-12


# -------------------------------------------------------------------------- empty tensors


def test_empty_sum_and_mean():
    """
    Source: flagos-ai/FlagGems#5501 -- sum of an empty tensor divides by zero
    Source: flagos-ai/FlagGems#6333 -- mean over nothing raises instead of giving NaN
    Source: pytorch/pytorch#139446 -- reductions of empty tensors return uninitialised values
    Kind: zero-size (launch size computed from numel == 0)
    """
    for shape in ((0,), (1, 0), (0, 3)):
        x = torch.empty(shape)
        for fn in (torch.sum, torch.mean, torch.prod, torch.any, torch.all):
            same(fn(dev(x)), fn(x))
    x = torch.empty(3, 0)
    for fn in (torch.sum, torch.mean, torch.prod, torch.nansum, torch.logsumexp):
        same(fn(dev(x), dim=1), fn(x, dim=1))
    same(dev(torch.empty(1, 0, dtype=torch.bool)).sum(), torch.tensor(0))
    with pytest.raises((RuntimeError, IndexError)):
        torch.empty(0, device=DEVICE).max()


def test_empty_scan_and_nonzero():
    """
    Source: flagos-ai/FlagGems#4543 -- cumsum of an empty int32 tensor divides by zero
    Source: flagos-ai/FlagGems#6073 -- nonzero / where of an empty tensor indexes element -1
    Kind: zero-size (launch size computed from numel == 0)
    """
    same(torch.cumsum(torch.empty(0, dtype=torch.int32, device=DEVICE), 0), torch.empty(0, dtype=torch.int64))
    same(torch.cumprod(torch.empty(2, 0, device=DEVICE), 1), torch.empty(2, 0))
    m = torch.empty(0, 3, dtype=torch.bool)
    same(dev(m).nonzero(), m.nonzero())
    assert [t.shape for t in torch.where(dev(m))] == [torch.Size([0])] * 2
    same(torch.sort(torch.empty(0, device=DEVICE))[1], torch.sort(torch.empty(0))[1])
    same(torch.unique(torch.empty(0, device=DEVICE)), torch.unique(torch.empty(0)))
    same(torch.masked_select(dev(torch.ones(3)), dev(torch.zeros(3, dtype=torch.bool))), torch.empty(0))


def test_scatter_with_empty_index_returns_the_input():
    """
    Source: intel/intel-extension-for-pytorch#682 -- scatter with an empty index returns zeros instead of the input
    Kind: zero-size (early return before the input was copied to the output)
    """
    x = torch.tensor([[0.5, 1.5, 2.5]])
    idx, src = torch.empty(1, 0, dtype=torch.int64), torch.empty(1, 0)
    same(dev(x).scatter(1, dev(idx), dev(src)), x)
    same(dev(x).scatter_add(1, dev(idx), dev(src)), x)
    same(dev(x).index_add(1, dev(idx[0]), dev(src)), x)
    same(dev(x).index_copy(1, dev(idx[0]), dev(src)), x)
    same(dev(x).index_put((dev(idx[0]),), dev(torch.empty(0, 3))), x)
    same(dev(x).masked_scatter(dev(torch.zeros(1, 3, dtype=torch.bool)), dev(src)), x)


def test_matmul_family_with_zero_sizes():
    """
    Source: pytorch/pytorch#187399 -- baddbmm with a size-0 dimension hits an internal assert
    Source: pytorch/pytorch#137406 -- matmul of a (0, 9) matrix crashes
    Source: pytorch/pytorch#190050 -- linear with in_features == 0 aborts the process; backward fails too
    Kind: zero-size (empty operand or empty inner dimension)
    """
    x, b1, b2 = torch.ones(2, 0, 1), torch.ones(2, 0, 3), torch.ones(2, 3, 1)
    same(torch.baddbmm(dev(x), dev(b1), dev(b2)), torch.baddbmm(x, b1, b2))
    y = torch.full((2, 4, 5), 3.0)
    same(torch.baddbmm(dev(y), dev(torch.ones(2, 4, 0)), dev(torch.ones(2, 0, 5)), beta=0.5), y * 0.5)
    same(torch.empty(0, 9, device=DEVICE) @ torch.ones(9, device=DEVICE), torch.empty(0))
    xi, w, b = (t.requires_grad_() for t in (dev(torch.ones(3, 4, 0)), dev(torch.ones(5, 0)), dev(torch.arange(5.0))))
    out = F.linear(xi, w, b)
    same(out, torch.arange(5.0).expand(3, 4, 5))
    out.sum().backward()
    same(b.grad, torch.full((5,), 12.0))
    same(w.grad, torch.empty(5, 0))


def test_index_add_on_zero_size_self():
    """
    Source: pytorch/pytorch#186972 -- index_add on a tensor with a size-0 axis hits an internal assert
    Source: pytorch/pytorch#165237 -- dot of two empty vectors crashes
    Kind: zero-size (empty operand)
    """
    x = torch.empty(0, 2, 1)
    same(torch.index_add(dev(x), 1, dev(torch.tensor([0])), torch.empty(0, 1, 1, device=DEVICE), alpha=-0.25), x)
    same(torch.dot(torch.empty(0, device=DEVICE), torch.empty(0, device=DEVICE)), torch.tensor(0.0))
    same(torch.cat([torch.empty(0, device=DEVICE), dev(torch.ones(2))]), torch.ones(2))
    same(F.conv1d(torch.empty(0, 2, 5, device=DEVICE), torch.ones(3, 2, 3, device=DEVICE)), torch.empty(0, 3, 3))
    same(F.embedding(torch.empty(0, dtype=torch.int64, device=DEVICE), dev(torch.ones(4, 2))), torch.empty(0, 2))


def test_backward_through_empty_tensors():
    """
    Source: pytorch/pytorch#82541 -- backward of a division of empty tensors segfaults
    Kind: zero-size (empty operand in backward)
    """
    a = torch.empty(1, 0, device=DEVICE, requires_grad=True)
    b = torch.empty(1, 0, device=DEVICE, requires_grad=True)
    (torch.true_divide(a, b) * F.softmax(a, -1)).sum().backward()
    same(a.grad, torch.empty(1, 0))
    same(b.grad, torch.empty(1, 0))


# -------------------------------------------------------------------------------- indexing


def test_bool_mask_assignment():
    """
    Source: Ascend/pytorch#153 -- x[mask] = values poisons the device context, whether the mask is on device or host
    Kind: bool-mask (mask treated as an integer index)
    """
    x, vals = torch.zeros(17, 4), torch.arange(20.0).reshape(5, 4)
    m = torch.zeros(17, dtype=torch.bool)
    m[3:8] = True
    x[m] = vals
    for mask in (m, dev(m)):
        y = torch.zeros(17, 4, device=DEVICE)
        y[mask] = dev(vals)
        same(y, x)
    z = torch.zeros(17, 4, device=DEVICE)
    z[dev(m)] = 5
    z[dev(~m), 1] += 2
    r = torch.zeros(17, 4)
    r[m] = 5
    r[~m, 1] += 2
    same(z, r)


def test_bool_mask_selection_shape():
    """
    Source: flagos-ai/Torch-FL#323 -- a [B, S] mask over [B, S, H] gives a wrong shape
    Source: flagos-ai/Torch-FL#328 -- a mask after leading dimensions comes out in the wrong order
    Kind: bool-mask (mask treated as an integer index)
    """
    x = torch.arange(30.0).reshape(2, 5, 3)
    m = torch.tensor([[1, 0, 1, 1, 0], [0, 0, 1, 0, 0]], dtype=torch.bool)
    same(dev(x)[dev(m)], x[m])
    same(dev(x)[:, dev(m[0])], x[:, m[0]])
    same(dev(x)[..., dev(torch.tensor([True, False, True]))], x[..., torch.tensor([True, False, True])])
    same(dev(x)[dev(torch.zeros_like(m))], x[torch.zeros_like(m)])
    same(dev(x)[0, dev(m[0]), 1], x[0, m[0], 1])


def test_duplicate_indices_accumulate():
    """
    Source: torch-spyre/torch-spyre#3638 -- index_add / scatter_add with repeated targets lose contributions
    Kind: duplicate-index (unsynchronised read-modify-write)
    """
    tok = torch.arange(8).repeat_interleave(16)
    seg = torch.ones(128, 3)
    ref = torch.full((8, 3), 16.0)
    same(torch.zeros(8, 3, device=DEVICE).index_add_(0, dev(tok), dev(seg)), ref)
    same(torch.zeros(8, 3, device=DEVICE).scatter_add_(0, dev(tok)[:, None].expand(128, 3), dev(seg)), ref)
    same(torch.zeros(8, 3, device=DEVICE).index_put_((dev(tok),), dev(seg), accumulate=True), ref)
    same(
        torch.zeros(8, device=DEVICE).index_put_((dev(tok),), dev(torch.tensor(1.0)), accumulate=True),
        torch.full((8,), 16.0),
    )
    same(torch.bincount(dev(tok)), torch.full((8,), 16))
    same(
        torch.zeros(8, device=DEVICE).scatter_reduce_(0, dev(tok), dev(torch.arange(128.0)), "amax"),
        torch.arange(15.0, 128, 16),
    )


def test_python_list_indices():
    """
    Source: pytorch/pytorch#81051 -- indexing a device tensor with Python lists is refused
    Kind: host-index (index tensors live on the CPU)
    """
    x = torch.arange(9).reshape(3, 3)
    same(dev(x)[[1, 2], [2, 1]], x[[1, 2], [2, 1]])
    same(dev(x)[torch.tensor([0, 2])], x[torch.tensor([0, 2])])
    y = dev(x)
    y[[0, 2], 1:] = -1
    ref = x.clone()
    ref[[0, 2], 1:] = -1
    same(y, ref)


def test_slice_assignment_from_host_tensor():
    """
    Source: pytorch/pytorch#86975 -- assigning a CPU tensor to a strided device slice writes neighbouring elements
    Kind: strided-copy (host-to-device copy into a non-contiguous destination)
    """
    a = torch.tensor([[1.0, 2], [3, 4], [5, 6]])
    y = dev(a)
    y[1:, 1] = torch.tensor([-1.0, -1.0])
    y[:, 0].copy_(torch.tensor([7, 8, 9]))  # other dtype as well
    same(y, torch.tensor([[7.0, 2], [8, -1], [9, -1]]))
    host = torch.zeros(3, 4)
    host[:, ::2].copy_(y)  # and device-to-host into strides
    assert host.tolist() == [[7, 0, 2, 0], [8, 0, -1, 0], [9, 0, -1, 0]]


def test_data_dependent_sizes_are_exact():
    """
    Source: intel/torch-xpu-ops#4396 -- nonzero returns too few rows, differing from call to call
    Source: intel/torch-xpu-ops#629 -- boolean selection through a fallback breaks the expression around it
    Kind: dynamic-output (size read back before the count is final)
    """
    m = torch.zeros(1 << 15, dtype=torch.bool)
    m[torch.arange(0, 1 << 15, 7)] = True
    dm = dev(m)
    for _ in range(5):
        same(dm.nonzero(), m.nonzero())
        assert dm.nonzero().shape[0] == int(dm.sum())
    x = (torch.arange(5000) * 37) % 101
    for got, ref in zip(
        torch.unique(dev(x), return_inverse=True, return_counts=True),
        torch.unique(x, return_inverse=True, return_counts=True),
        strict=True,
    ):
        same(got, ref)
    same(torch.masked_select(dev(x), dev(x) > 50), torch.masked_select(x, x > 50))
    same(
        torch.repeat_interleave(dev(x[:5]), dev(torch.tensor([0, 2, 1, 0, 3]))),
        torch.repeat_interleave(x[:5], torch.tensor([0, 2, 1, 0, 3])),
    )


# ------------------------------------------------------------------ ordering, NaN, comparisons


def test_sort_with_infinities_and_ties():
    """
    Source: flagos-ai/FlagGems#503 -- descending fp16 sort with -inf returns NaN and indices out of range
    Source: flagos-ai/FlagGems#505 -- argsort of repeated ids returns indices past the end
    Kind: ordering (padding sentinel collides with real data; ties not a permutation)
    """
    y = torch.tensor([[-5.5, -8.0, INF, -INF, -INF, 3.0, -INF]], dtype=torch.float16)
    v, i = torch.sort(dev(y), dim=1, descending=True, stable=True)
    rv, ri = torch.sort(y, dim=1, descending=True, stable=True)
    same(v, rv)
    same(i, ri)
    ids = torch.tensor([16, 17, 18, 19] * 6)
    perm = torch.argsort(dev(ids)).cpu()
    assert sorted(perm.tolist()) == list(range(24)) and torch.equal(ids[perm], ids.sort()[0])
    same(torch.argsort(dev(ids), stable=True), torch.argsort(ids, stable=True))


def test_nan_propagates_through_max():
    """
    Source: pytorch/pytorch#130295 -- max and argmax skip NaN
    Source: pytorch/pytorch#143976 -- maximum and minimum do not propagate NaN
    Kind: nan-semantics (device min/max instruction drops NaN)
    """
    x = torch.tensor([[1.0, NAN, 3.0], [0.5, -1.0, 2.0]])
    y = torch.tensor([[NAN, 1.0, 1.0], [1.0, 1.0, NAN]])
    for fn in (torch.max, torch.min, torch.argmax, torch.argmin, torch.amax):
        same(fn(dev(x)), fn(x))
    for fn in (torch.maximum, torch.minimum, torch.fmax, torch.fmin):
        same(fn(dev(x), dev(y)), fn(x, y))
    for fn in (torch.max, torch.cummax):
        for got, ref in zip(fn(dev(x), 1), fn(x, 1), strict=True):
            same(got, ref)
    same(torch.clamp(dev(x), -1, 2), torch.clamp(x, -1, 2))
    same(torch.relu(dev(x)), torch.relu(x))
    same(torch.sort(dev(x), 1)[0], torch.sort(x, 1)[0])
    same(torch.topk(dev(x), 2, 1)[0], torch.topk(x, 2, 1)[0])


def test_topk_in_half_precision():
    """
    Source: torch-spyre/torch-spyre#4639 -- top-8 routing over 128 experts in bf16 picks wrong experts
    Source: flagos-ai/Torch-FL#276 -- topk only works along the last dimension
    Kind: ordering (top-k along any dim, any float dtype)
    """
    x = torch.stack([torch.randperm(128, generator=torch.Generator().manual_seed(s)) for s in range(16)]).to(
        torch.bfloat16
    )
    for got, ref in zip(torch.topk(dev(x), 8, -1), torch.topk(x, 8, -1), strict=True):
        same(got, ref)
    for got, ref in zip(
        torch.topk(dev(x.t().contiguous()), 8, 0, largest=False),
        torch.topk(x.t().contiguous(), 8, 0, largest=False),
        strict=True,
    ):
        same(got, ref)
    same(torch.kthvalue(dev(x.float()), 3)[0], torch.kthvalue(x.float(), 3)[0])


def test_comparisons_of_integer_ids():
    """
    Source: torch-spyre/torch-spyre#2323 -- ne over token ids returns mostly False
    Source: torch-spyre/torch-spyre#2295 -- le has no device implementation and no route to another one
    Source: torch-spyre/torch-spyre#1696 -- all() over a bool tensor is unavailable, so control flow breaks
    Kind: op-coverage (comparison and boolean reduction)
    """
    a, b = torch.arange(38).reshape(2, 19) % 5, torch.full((2, 19), 3)
    for fn in (torch.ne, torch.eq, torch.le, torch.lt, torch.ge, torch.gt):
        same(fn(dev(a), dev(b)), fn(a, b))
        same(fn(dev(a), 2), fn(a, 2))
    assert not (dev(a) == dev(b)).all() and bool((dev(a) < 5).all()) and bool((dev(a) == 3).any())
    same((dev(a) < 4).all(1), (a < 4).all(1))


def test_membership_and_moments():
    """
    Source: artyom-beilis/pytorch_dlprim#97 -- isin and any are missing, so text generation crashes
    Source: MooreThreads/torch_musa#72 -- std with a correction is missing
    Source: MooreThreads/torch_musa#17 -- cumprod, where and std are missing
    Kind: op-coverage (no route found although a decomposition or fallback exists)
    """
    x = torch.tensor([[1, 2, 3], [4, 5, 6]])
    same(torch.isin(dev(x), dev(torch.tensor([2, 6]))), torch.isin(x, torch.tensor([2, 6])))
    f = x.double().sqrt().float()
    for c in (0, 1, 2):
        same(torch.std(dev(f), dim=-1, correction=c), torch.std(f, dim=-1, correction=c))
        for got, ref in zip(torch.var_mean(dev(f), correction=c), torch.var_mean(f, correction=c), strict=True):
            same(got, ref)
    same(dev(f).std(unbiased=False), f.std(unbiased=False))
    same(torch.cumprod(dev(f), -1), torch.cumprod(f, -1))


def test_broadcast_of_reduced_and_filled_tensors():
    """
    Source: torch-spyre/torch-spyre#1303 -- mean(keepdim) + zeros_like + y broadcasts the wrong lanes
    Source: pytorch/pytorch#136132 -- sum over a middle dim next to trailing size-1 dims fails
    Kind: broadcast (size-1 dimensions)
    """
    x, y = torch.ones(2, 3, 70) * torch.tensor([1.0, 2.0, 3.0])[:, None], torch.tensor([0.5])
    fn = lambda a, b: a.mean(-1, keepdim=True) + torch.zeros_like(a) + b
    same(fn(dev(x), dev(y)), fn(x, y))
    z = torch.ones(2, 4, 1, 30, 1)
    for d in (-1, -2, -3, -4, (1, 3), (-2, -1)):
        same(dev(z).sum(dim=d), z.sum(dim=d))
    same(torch.full((3, 1), 2.0, device=DEVICE) * dev(torch.arange(4.0)), torch.full((3, 1), 2.0) * torch.arange(4.0))
