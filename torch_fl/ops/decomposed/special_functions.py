"""Special functions: orthogonal polynomials by their recurrences, Bessel and Airy functions by quadrature.

Bessel functions are integrals of smooth periodic or fast-decaying functions, for which the trapezoidal rule converges
exponentially: a matrix product over the nodes. Far from zero Hankel's asymptotic expansion takes over.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from torch_fl.ops.decompositions import register

Recurrence = Callable[[Tensor, Tensor, Tensor, int], Tensor]  # (x, P[k], P[k-1], k) -> P[k+1]


def _operands(x: Tensor | float, n: Tensor | float) -> tuple[Tensor, Tensor]:
    kind = torch.result_type(x, n)
    kind = kind if kind.is_floating_point else torch.get_default_dtype()
    device = x.device if isinstance(x, Tensor) else n.device
    x, n = (torch.as_tensor(v, dtype=kind, device=device) for v in (x, n))
    x, n = torch.broadcast_tensors(x, n)
    return x, n.trunc()


def _by_recurrence(x: Tensor, n: Tensor, one: Tensor, step: Recurrence, done: Tensor | None = None) -> Tensor:
    """P[n] from P[0] = 1 and P[1] = one; `done` elements are known already and need no steps. 0 for negative n."""
    zero = torch.ones_like(x)
    result = torch.where(n == 0, zero, torch.where(n == 1, one, 0.0))
    wanted = n if done is None else torch.where(done, 0.0, n)
    last = int(wanted.max().item()) if wanted.numel() else 0
    before, now = zero, one
    for k in range(1, last):
        before, now = now, step(x, now, before, k)
        result = torch.where(n == k + 1, now, result)
    return result


def _chebyshev_step(x: Tensor, now: Tensor, before: Tensor, k: int) -> Tensor:
    return 2 * x * now - before


# Inside (-1, 1) and for larger n the trigonometric forms are exact enough and need no steps.
_CHEBYSHEV: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "t": (lambda x: x, lambda n, a: torch.cos(n * a)),
    "u": (lambda x: 2 * x, lambda n, a: torch.sin((n + 1) * a) / torch.sin(a)),
    "v": (lambda x: 2 * x - 1, lambda n, a: torch.cos((n + 0.5) * a) / torch.cos(a / 2)),
    "w": (lambda x: 2 * x + 1, lambda n, a: torch.sin((n + 0.5) * a) / torch.sin(a / 2)),
}


def _chebyshev(kind: str, x: Tensor, n: Tensor) -> Tensor:
    first, closed = _CHEBYSHEV[kind]
    inside = (n > (6 if kind == "t" else 8)) & (x.abs() < 1)
    result = _by_recurrence(x, n, first(x), _chebyshev_step, inside)
    return torch.where(inside, closed(n, torch.acos(x.clamp(-1, 1))), result)


def _register_polynomials() -> None:
    def chebyshev(kind: str, shifted: bool) -> Callable[..., Tensor]:
        def run(x: Tensor | float, n: Tensor | float) -> Tensor:
            x, n = _operands(x, n)
            return _chebyshev(kind, 2 * x - 1 if shifted else x, n)

        return run

    def other(first: Callable[[Tensor], Tensor], step: Recurrence) -> Callable[..., Tensor]:
        def run(x: Tensor | float, n: Tensor | float) -> Tensor:
            x, n = _operands(x, n)
            return _by_recurrence(x, n, first(x), step)

        return run

    for kind in _CHEBYSHEV:
        register(f"aten::special_chebyshev_polynomial_{kind}")(chebyshev(kind, False))
        register(f"aten::special_shifted_chebyshev_polynomial_{kind}")(chebyshev(kind, True))
    for name, first, step in (
        ("hermite_polynomial_h", lambda x: 2 * x, lambda x, p, q, k: 2 * x * p - 2 * k * q),
        ("hermite_polynomial_he", lambda x: x, lambda x, p, q, k: x * p - k * q),
        ("laguerre_polynomial_l", lambda x: 1 - x, lambda x, p, q, k: ((2 * k + 1 - x) * p - k * q) / (k + 1)),
        ("legendre_polynomial_p", lambda x: x, lambda x, p, q, k: ((2 * k + 1) * x * p - k * q) / (k + 1)),
    ):
        register(f"aten::special_{name}")(other(first, step))


_register_polynomials()


# Bessel functions of the first and second kind

_NODES = 64  # on [0, pi]; right up to arguments of _NEAR
_NEAR = 25.0


def _floating(x: Tensor) -> Tensor:
    if x.dtype in (torch.float16, torch.bfloat16):
        raise NotImplementedError("special functions of half types")
    return x if x.is_floating_point() else x.to(torch.get_default_dtype())


def _nodes(like: Tensor) -> Tensor:
    """Midpoints of [0, pi]."""
    return (torch.arange(_NODES, dtype=like.dtype, device=like.device) + 0.5) * (math.pi / _NODES)


def _near_j(order: int, x: Tensor) -> Tensor:
    """J_n(x), the mean over t of cos(n t - x sin t)."""
    t = _nodes(x)
    return torch.cos(order * t - x.unsqueeze(-1) * torch.sin(t)).mean(-1)


def _near_y(order: int, x: Tensor) -> Tensor:
    """Neumann's series of J of higher order, whose terms the same nodes give together."""
    t = _nodes(x)
    turned = x.unsqueeze(-1) * torch.sin(t)
    terms = range(1, _NODES // 2 - 1)
    if order == 0:
        weights = sum((-1) ** k / k * torch.cos(2 * k * t) for k in terms)
        series = (torch.cos(turned) * weights).mean(-1)
        return 2 / math.pi * ((torch.log(x / 2) + _EULER) * _near_j(0, x) - 2 * series)
    weights = sum((-1) ** k * (2 * k + 1) / (k * (k + 1)) * torch.sin((2 * k + 1) * t) for k in terms)
    series = (torch.sin(turned) * weights).mean(-1)
    return 2 / math.pi * (-_near_j(0, x) / x + (torch.log(x / 2) + _EULER - 1) * _near_j(1, x) - series)


_EULER = 0.57721566490153286


def _far(order: int, x: Tensor) -> tuple[Tensor, Tensor]:
    """(J, Y) by Hankel's expansion: sqrt(2 / pi x) (P cos - Q sin, P sin + Q cos)."""
    term, P, Q = torch.ones_like(x), torch.ones_like(x), torch.zeros_like(x)
    for k in range(1, 9):
        term = term * ((4 * order * order - (2 * k - 1) ** 2) / (8 * k)) / x
        sign = (1, 1, -1, -1)[k % 4]
        if k % 2:
            Q = Q + sign * term
        else:
            P = P + sign * term
    phase = x - (order / 2 + 0.25) * math.pi
    scale = torch.sqrt(2 / (math.pi * x))
    cosine, sine = torch.cos(phase), torch.sin(phase)
    return scale * (P * cosine - Q * sine), scale * (P * sine + Q * cosine)


def _bessel_j(order: int, self: Tensor) -> Tensor:
    x = _floating(self)
    size = x.abs()
    near = _near_j(order, size.clamp(max=_NEAR))
    result = torch.where(size <= _NEAR, near, _far(order, size.clamp(min=_NEAR))[0])
    result = torch.where(torch.isinf(size), 0.0, result)
    result = torch.where(torch.isnan(x), x, result)
    return torch.where(x < 0, -result, result) if order % 2 else result


def _bessel_y(order: int, self: Tensor) -> Tensor:
    x = _floating(self)
    tiny = torch.finfo(x.dtype).tiny
    near = _near_y(order, x.clamp(tiny, _NEAR))
    result = torch.where(x <= _NEAR, near, _far(order, x.clamp(min=_NEAR))[1])
    result = torch.where(torch.isinf(x), 0.0, result)
    result = torch.where(x > 0, result, torch.where(x == 0, -math.inf, math.nan))
    return torch.where(torch.isnan(x), x, result)


@register("aten::special_bessel_j0")
def bessel_j0(self: Tensor) -> Tensor:
    return _bessel_j(0, self)


@register("aten::special_bessel_j1")
def bessel_j1(self: Tensor) -> Tensor:
    return _bessel_j(1, self)


@register("aten::special_bessel_y0")
def bessel_y0(self: Tensor) -> Tensor:
    return _bessel_y(0, self)


@register("aten::special_bessel_y1")
def bessel_y1(self: Tensor) -> Tensor:
    return _bessel_y(1, self)


@register("aten::special_spherical_bessel_j0")
def spherical_bessel_j0(self: Tensor) -> Tensor:
    return torch.sinc(_floating(self) / math.pi)


# Modified Bessel functions, and Airy's


@register("aten::special_modified_bessel_i0")
def modified_bessel_i0(self: Tensor) -> Tensor:
    return torch.special.i0(_floating(self))


@register("aten::special_modified_bessel_i1")
def modified_bessel_i1(self: Tensor) -> Tensor:
    return torch.special.i1(_floating(self))


def _scaled_k(order: float, x: Tensor) -> Tensor:
    """exp(x) K(x) = integral over t >= 0 of exp(-x (cosh t - 1)) cosh(order t), as far as it matters."""
    safe = x.clamp(min=torch.finfo(x.dtype).tiny)
    reach = torch.acosh(1 + 40 / safe).clamp(max=90.0).unsqueeze(-1)
    steps = 160
    part = torch.arange(steps + 1, dtype=x.dtype, device=x.device) / steps
    t = reach * part
    half = torch.sinh(t / 2)
    values = torch.exp(-2 * safe.unsqueeze(-1) * half * half) * torch.cosh(order * t)
    weights = torch.ones_like(part)
    weights[0] = 0.5
    return (values * weights).sum(-1) * reach.squeeze(-1) / steps


def _modified_k(order: int, self: Tensor, scaled: bool) -> Tensor:
    x = _floating(self)
    result = _scaled_k(order, x)
    result = result if scaled else result * torch.exp(-x)
    result = torch.where(x > 0, result, torch.where(x == 0, math.inf, math.nan))
    return torch.where(torch.isnan(x), x, result)


@register("aten::special_modified_bessel_k0")
def modified_bessel_k0(self: Tensor) -> Tensor:
    return _modified_k(0, self, False)


@register("aten::special_modified_bessel_k1")
def modified_bessel_k1(self: Tensor) -> Tensor:
    return _modified_k(1, self, False)


@register("aten::special_scaled_modified_bessel_k0")
def scaled_modified_bessel_k0(x: Tensor) -> Tensor:
    return _modified_k(0, x, True)


@register("aten::special_scaled_modified_bessel_k1")
def scaled_modified_bessel_k1(x: Tensor) -> Tensor:
    return _modified_k(1, x, True)


@register("aten::special_airy_ai")
def airy_ai(x: Tensor) -> Tensor:
    x = _floating(x)
    third = 2 / 3
    # Positive: a modified Bessel function of order 1/3.
    positive = x.clamp(min=1e-6)
    zeta = third * positive * torch.sqrt(positive)
    falling = torch.sqrt(positive / 3) / math.pi * _scaled_k(1 / 3, zeta) * torch.exp(-zeta)
    # Far below zero: an oscillation with Hankel's corrections for order 1/3.
    below = (-x).clamp(min=5.0)
    zeta = third * below * torch.sqrt(below)
    term, even, odd = torch.ones_like(x), torch.ones_like(x), torch.zeros_like(x)
    for k in range(1, 7):
        term = term * ((6 * k - 5) * (6 * k - 1) / (72 * k)) / zeta
        sign = (1, 1, -1, -1)[k % 4]
        even, odd = (even, odd + sign * term) if k % 2 else (even + sign * term, odd)
    phase = zeta - math.pi / 4
    wave = torch.cos(phase) * even + torch.sin(phase) * odd
    oscillating = wave / (math.sqrt(math.pi) * torch.sqrt(torch.sqrt(below)))
    # Between: Airy's integral along a line above the real one, where it falls like a bell; symmetric about t = 0.
    steps, reach, height = 144, 6.5, 0.5
    t = torch.arange(steps, dtype=x.dtype, device=x.device) * (reach / steps)
    middle = x.clamp(-5.0, 1.0).unsqueeze(-1)
    bell = torch.exp(-height * t * t + (height**3 / 3 - height * middle))
    values = bell * torch.cos(t * t * t / 3 + (middle - height * height) * t)
    ray = (values.sum(-1) - values[..., 0] / 2) * (reach / steps / math.pi)
    result = torch.where(x > 1, falling, torch.where(x < -5, oscillating, ray))
    return torch.where(torch.isnan(x), x, torch.where(torch.isinf(x), 0.0, result))
