# SPDX-License-Identifier: Apache-2.0
"""Monte Carlo arithmetic: measures how much rounding changes the results of a formula.

The reference runs in float64, and every intermediate result is moved by a random relative error of
the dtype that kernels compute in. Several such runs show how far correct implementations of the
formula are from the exact value, for each element. This spread does not depend on the luck of one
implementation, and an element next to large ones has its own spread.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from opforge.truth.sums import power_of_two, root_of_squares, short_cumsum


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# These ops only move, choose or compare values, or flip a sign. They do not round.
EXACT = _names(
    """
    abs alias amax amin arange as_strided bernoulli cat ceil clamp clamp_max clamp_min clone
    constant_pad_nd copy copy_ detach embedding empty empty_like empty_strided expand eye fill fill_
    flip floor full full_like gather hardtanh hardtanh_backward index index_fill index_select
    leaky_relu_backward lift_fresh masked_fill masked_fill_ masked_scatter masked_select max maximum
    max_pool2d_with_indices max_pool2d_with_indices_backward median min minimum mode nan_to_num neg
    neg_ new_empty new_empty_strided new_full new_ones new_zeros ones ones_like permute
    pixel_shuffle reflection_pad1d reflection_pad2d relu relu_ repeat replication_pad1d
    replication_pad2d resize_ roll rot90 round scalar_tensor scatter select_backward select_scatter
    set_ sgn sign slice_backward slice_scatter sort split squeeze t take threshold
    threshold_backward topk transpose tril triu trunc unfold unsqueeze where zero_ zeros zeros_like
    _local_scalar_dense _to_copy _unsafe_view _reshape_alias _conj _neg_view view_as_real
    view_as_complex real imag
    """
)
# Elementwise functions. A kernel may round their argument before it evaluates them.
_FUNCTIONS = _names(
    """
    acos acosh asin asinh atan atan2 atanh cos cosh digamma erf erfc erfinv exp exp2 expm1 i0
    lgamma log log10 log1p log2 pow reciprocal rsqrt sin sinc sinh sqrt tan tanh
    """
)
_ARITHMETIC = _names("add add_ sub sub_ rsub mul mul_ div div_ square remainder fmod")
_PRODUCTS = _names("mm bmm dot mv convolution")
_MOST_PRODUCTS = (
    1 << 21
)  # at most so many products are added one by one, to measure the error of that order
# Each element of the result is a sum of elements that an index selects.
_SCATTERS = _names(
    "embedding_dense_backward index_add index_put put scatter_add unfold_backward _unsafe_index_put"
)
# The fewest random signs that are drawn, and the fewest positions to start at.
_POOL, _SHIFTS = 1 << 16, 1 << 12


_pools: dict[torch.device, Tensor] = {}


def _signs_for(count: int, device: torch.device) -> Tensor:
    """More than ``count`` random signs. Callers start anywhere, because drawing anew is slow."""
    pool = _pools.get(device)
    if pool is None or len(pool) < count + _SHIFTS:
        drawn = torch.empty(2 * max(count, _POOL), dtype=torch.float64, device=device)
        generator = torch.Generator(device).manual_seed(0)
        pool = drawn.bernoulli_(0.5, generator=generator).mul_(2).sub_(1)
        _pools[device] = pool
    return pool


class Mode(TorchDispatchMode):
    """A dispatch mode without torch's guard against compilation, which costs a lot of time."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


@functools.cache
def name_of(func: Any) -> str:
    """The name of an operator, without the namespace if it is torch's own."""
    return str(func._schema.name.removeprefix("aten::"))


def _flat(args: tuple[Any, ...]) -> Iterator[Any]:
    """The arguments, with lists among them flattened."""
    for a in args:
        if isinstance(a, (tuple, list)):
            yield from a
        else:
            yield a


_entered: list[RandomRounding] = []


class RandomRounding(Mode):
    """A mode that moves every float64 result by a random rounding of ``compute``'s precision.

    Args:
        compute: the dtype that kernels compute in: float32, or float64.
        seed: seed of the roundings.
        results: the dtype of results. For 16 bits, functions in a kernel need not be as exact as
            float32; those of GPUs have errors of about 2^-11.
    """

    def __init__(
        self, compute: torch.dtype, seed: int, results: torch.dtype = torch.float64
    ) -> None:
        super().__init__()
        info = torch.finfo(compute)
        # For float64, half an ulp would be lost in the rounding of the simulation itself.
        self._unit = info.eps if compute == torch.float64 else info.eps / 2
        self._least = info.smallest_normal * self._unit
        self._most = info.max
        self._compute = compute
        self._function_unit = self._unit
        if results in (torch.float16, torch.bfloat16):
            self._function_unit = torch.finfo(results).eps / 32
        self._seed = seed
        self._draw = random.Random(seed)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = name_of(func)
        if name in EXACT or func.is_view or not any(map(_is_wide, _flat(args))):
            return func(*args, **kwargs)
        if name == "cumsum":
            return self._cumsum(*args, **kwargs)
        if name == "logcumsumexp":
            return self._logcumsumexp(func, *args)
        if name in ("sum", "mean"):
            return self._sum(func, name == "mean", args, kwargs)
        if name in _PRODUCTS:
            return self._product(func, name, args, kwargs)
        if name in _SCATTERS:
            return self._scattered(func, args, kwargs)
        if name in ("var", "var_mean", "std", "std_mean"):
            return self._moments(name, *args, **kwargs)
        if name not in _FUNCTIONS and name not in _ARITHMETIC:
            with self:
                done = _decomposed(func, args, kwargs)
            if done is not None:
                return done
        if name not in _ARITHMETIC and not func._schema.is_mutable:
            # A function, or an unknown op, which may add up its arguments.
            terms = 1 if name in _FUNCTIONS else _most_terms(func, args, kwargs)
            args = tuple(self._rounded(a, self._unit * math.sqrt(terms)) for a in args)
        result = func(*args, **kwargs)
        if func._schema.is_mutable:
            if _is_wide(result):
                result.copy_(self._rounded(result))
            return result
        if isinstance(result, (tuple, list)):
            return type(result)(self._rounded(r) for r in result)
        return self._rounded(result, self._function_unit if name in _FUNCTIONS else self._unit)

    def __enter__(self) -> RandomRounding:
        super().__enter__()
        _entered.append(self)
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        _entered.pop()

    def _signs(self, like: Tensor) -> Tensor:
        """Random 1 and -1. These are the extremes, so that averages do not hide the worst case."""
        pool = _signs_for(like.numel(), like.device)
        begin = self._draw.randrange(len(pool) - like.numel())
        return pool[begin : begin + like.numel()].view(like.shape)

    def _moved(self, value: Tensor, size: Tensor) -> Tensor:
        """``value`` with a random error of this size. Zeros and non-finite values are unchanged."""
        if value.is_complex():
            parts = torch.view_as_real(value.resolve_conj())
            size = torch.where(torch.isfinite(size), size, 0.0).unsqueeze(-1)
            return torch.view_as_complex(parts + self._signs(parts) * size)
        size = torch.where((value == 0) | ~torch.isfinite(size), 0.0, size.clamp(min=self._least))
        return self._in_range(value + self._signs(value) * size)

    def _in_range(self, value: Tensor) -> Tensor:
        """Overflow to infinity as a kernel does, where the sigmoid of -90 is 0 by an infinity."""
        if value.numel() and not bool(value.abs().amax() <= self._most):  # or a NaN
            return torch.where(value.abs() > self._most, value * math.inf, value)
        return value

    def _rounded(self, value: Any, unit: float = 0.0) -> Any:
        """``value`` with one rounding, or with a relative error of ``unit``."""
        unit = unit or self._unit
        if not _is_wide(value) or not value.numel():
            return value
        if value.is_complex():
            return self._moved(value, value.abs() * unit)
        moved = torch.addcmul(value, value, self._signs(value), value=unit)
        size = value.abs()
        least, most = size.aminmax()  # both are NaN if a value is; then neither comparison holds
        if not bool(least >= self._least / unit):
            # Small values have a larger relative rounding.
            small = (size < self._least / unit) & (value != 0)
            if bool(small.any()):
                moved = torch.where(small, self._moved(value, size * unit), moved)
        if bool(most <= self._most / 2):
            return moved
        # An infinity is not moved: a relative error would make it NaN, and so a whole row.
        return self._in_range(torch.where(torch.isinf(value), value, moved))

    def _summed(
        self,
        total: Tensor,
        root: Tensor,
        count: Tensor | float,
        serial: Tensor | None = None,
        products: bool = False,
    ) -> Tensor:
        """A sum of ``count + 1`` terms in any order, with one rounding each.

        ``root`` is the square root of the sum of their squares. The error is relative to the
        partial sums. With random signs these stay near ``root``; with one sign they grow up to
        the total. ``serial`` is the result of adding one by one, where many roundings of equal
        terms have the same sign. A sum of subnormal terms is exact, but subnormal ``products``
        are rounded before they are added.
        """
        partial = torch.maximum(root, total.abs() / math.sqrt(3))
        size = partial * self._unit * (count**0.5)
        if products:
            size = size.clamp(min=self._least * count**0.5)
        off = torch.zeros_like(size) if serial is None else (serial - total).abs()
        whole = (off > size) & torch.isfinite(off) & (self._seed % 16 == 0)
        size = torch.maximum(size, off / 4)
        # A total of exactly 0 may come from terms that cancel. Another order may leave a rest.
        rest = self._signs(total) * size
        moved = torch.where((total == 0) & (root > 0), rest, self._moved(total, size))
        # For some seeds the whole difference, because a part is too little if it is squared later.
        return moved if serial is None else torch.where(whole, serial, moved)

    def _sum(self, func: Any, mean: bool, args: tuple[Any, ...], kwargs: Any) -> Any:
        total, x = func(*args, **kwargs), args[0]
        count = x.numel() // max(total.numel(), 1)
        if not _is_wide(total) or count < 2 or not _is_wide(x):
            return self._rounded(total) if mean else total
        if mean:  # convert from means to sums
            total = total * count
        dim = args[1] if len(args) > 1 and args[1] else None
        root = root_of_squares(lambda x: x.sum(dim), x).reshape(total.shape)
        moved = self._summed(total, root, count - 1, self._one_by_one(x, dim, total.shape))
        return moved / count if mean else moved

    def _one_by_one(self, x: Tensor, dim: Any, shape: torch.Size) -> Tensor | None:
        """The sum in the kernels' dtype, added term by term, or None on a GPU."""
        if x.device.type != "cpu":
            return None
        dims = range(x.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
        summed = sorted(d % x.dim() for d in dims)
        order = [d for d in range(x.dim()) if d not in summed] + summed
        rows = x.detach().permute(order).flatten(len(order) - len(summed))
        total = _running_sums(self._narrow(rows), -1)[..., -1]
        return total.contiguous().to(x.dtype).reshape(shape)

    def _narrow(self, value: Tensor) -> Tensor:
        """``value`` in the kernels' dtype."""
        dtype = self._compute.to_complex() if value.is_complex() else self._compute
        return value.resolve_conj().to(dtype)

    def _cumsum(self, x: Tensor, dim: int, **kwargs: Any) -> Tensor:
        total = short_cumsum(x, dim)
        if not _is_wide(total) or not x.dim():
            return total
        count, serial = _places(x, dim), None
        if x.device.type == "cpu":
            serial = _running_sums(self._narrow(x.detach()), dim).to(x.dtype)
        root = root_of_squares(lambda x: short_cumsum(x, dim), x)
        return self._summed(total, root, count, serial)

    def _logcumsumexp(self, func: Any, x: Tensor, dim: int) -> Tensor:
        """logcumsumexp with a rounding at every step, relative to the largest value so far."""
        result: Tensor = func(self._rounded(x), dim)
        if not result.dim() or not result.numel():
            return result
        largest = result.abs().cummax(dim).values
        return self._moved(result, largest * self._unit * (_places(x, dim) + 1).sqrt())

    def _product(self, func: Any, name: str, args: tuple[Any, ...], kwargs: Any) -> Tensor:
        """Sums of products. Their number of terms follows from the second operand."""
        total: Tensor = func(*args, **kwargs)
        if not _is_wide(total):
            return total
        a, b = args[0], args[1]
        count = b[0].numel() if name == "convolution" else a.shape[-1]
        bias, rest = None, args[2:]
        if name == "convolution":
            bias, rest = rest[0], (None, *rest[1:])
        root = root_of_squares(lambda a, b: func(a, b, *rest, **kwargs), a, b)
        if bias is not None:  # one more term
            root = torch.hypot(root, bias.abs().view(-1, *[1] * (total.dim() - 2)))
        serial = None if name == "convolution" else self._products_one_by_one(a, b)
        return self._summed(total, root, max(count, 1), serial, products=True)

    def _products_one_by_one(self, a: Tensor, b: Tensor) -> Tensor | None:
        """Sums of products in the kernels' dtype, term by term, or None if there are too many."""
        if b.dim() > 1:
            a, b = a.unsqueeze(-2), b.transpose(-1, -2).unsqueeze(-3)
        terms = torch.broadcast_shapes(a.shape, b.shape)
        if a.device.type != "cpu" or not 0 < terms.numel() <= _MOST_PRODUCTS:
            return None
        products = self._narrow(a.detach()) * self._narrow(b.detach())
        return _running_sums(products, -1)[..., -1].to(a.dtype)

    def _moments(
        self, name: str, x: Tensor, dim: Any = None, correction: Any = 1, keepdim: bool = False
    ) -> Any:
        """Variance and standard deviation from differences to the mean, as good kernels do.

        In Welford's one-pass algorithm, each term has another mean, with the roundings of its sum.
        """
        if isinstance(dim, bool):  # var(x, unbiased)
            dim, correction = None, int(dim)
        dims = list(range(x.dim())) if dim is None or dim == [] else dim
        with self:
            mean = x.mean(dims, keepdim=True)
        count = x.numel() // max(mean.numel(), 1)
        means = self._rounded(mean.expand(x.shape), self._unit * math.sqrt(max(count - 1, 0) / 3))
        with self:
            squares = (x - means).square().sum(dims, keepdim=keepdim)
            left = count - (1 if correction is None else correction)
            result = squares / left if left > 0 else squares / 0.0
            if name.startswith("std"):
                result = result.sqrt()
        if name.endswith("_mean"):
            return result, mean if keepdim else mean.reshape(result.shape)
        return result

    def _scattered(self, func: Any, args: tuple[Any, ...], kwargs: Any) -> Tensor:
        """Sums whose terms an index selects. The same op on ones counts the terms."""

        def of(change: Callable[[Tensor], Tensor]) -> Tensor:
            made: Tensor = func(*(change(a) if _is_wide(a) else a for a in args), **kwargs)
            return made

        total = of(lambda a: a)
        if not total.numel():
            return total
        scale = max(power_of_two(a) for a in args if _is_wide(a))
        root = of(lambda a: (a.abs() / scale).square()).sqrt() * scale
        count = (of(lambda a: torch.ones_like(a.abs())) - 1).clamp(min=0)
        # On the CPU, torch adds these one by one.
        serial = of(self._narrow).to(total.dtype) if total.device.type == "cpu" else None
        return self._summed(total, root, count, serial)


def _running_sums(x: Tensor, dim: int) -> Tensor:
    """Running sums, added term by term. numpy adds in this order, torch does not."""
    import numpy as np  # imported here, because only comparisons need it

    return torch.from_numpy(np.add.accumulate(x.numpy(), axis=dim))


def _places(x: Tensor, dim: int) -> Tensor:
    """Positions 0, 1, 2, … along a dim."""
    shape = [1] * x.dim()
    shape[dim] = x.shape[dim]
    return torch.arange(x.shape[dim], dtype=torch.float64, device=x.device).view(shape)


def _most_terms(func: Any, args: tuple[Any, ...], kwargs: Any) -> int:
    """An upper limit of terms per element of a result, from the numbers of elements."""
    given = [a.numel() for a in args if isinstance(a, Tensor)]
    result = func(*args, **kwargs)
    results = result if isinstance(result, (tuple, list)) else [result]
    made = [r.numel() for r in results if r is not None]
    return max(max(given, default=1) // max(min(made, default=1), 1), 1)


def random_rounding(value: Tensor, dtype: torch.dtype, seed: int) -> Tensor:
    """A float64 tensor with a random error of the size of a rounding to ``dtype``."""
    if not _is_wide(value) or not dtype.is_floating_point or value.is_complex():
        return value
    mode = RandomRounding(dtype, seed)
    return mode._moved(value, value.abs() * (mode._unit / 2))


def coarse(x: Tensor, bits: int, gradient: bool = False) -> Tensor:
    """``x``, which a kernel may round to so many bits, counting the leading one.

    A reference says so of operands that are shortened on purpose, as TF32 does. It changes nothing
    but in a :class:`RandomRounding`. With ``gradient``, it says so of the gradient of ``x``.
    """
    result: Tensor = _Coarse.apply(x, bits, gradient) if _entered else x
    return result


def uncertain(x: Tensor, size: Callable[[], Tensor], unit: float) -> Tensor:
    """``x``, which a kernel may miss by ``unit`` times ``size()``, of the same shape.

    A reference says so of sums that are computed in fewer bits than float32 has, as tensor cores
    add FP8 products: their error depends on the terms. It changes nothing but in a
    :class:`RandomRounding`.
    """
    if not _entered or not _is_wide(x) or not x.numel():
        return x
    with torch.no_grad():
        error = _entered[-1]._signs(x) * size() * unit
    return x + torch.where(torch.isfinite(error), error, 0.0)


class _Coarse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bits: int, gradient: bool) -> Tensor:
        ctx.bits, ctx.gradient = bits, gradient
        return x.clone() if gradient else _shortened(x, bits)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return coarse(grad, ctx.bits) if ctx.gradient else grad, None, None


def _shortened(x: Tensor, bits: int) -> Tensor:
    return _entered[-1]._rounded(x, 2.0**-bits) if _entered and x.numel() else x.clone()


def _is_wide(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in (torch.float64, torch.complex128)


def _decomposed(func: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    """The result of torch's own decomposition of an op, or None if it has none."""
    known = _decompositions().get(func)
    if known is None:
        return None
    result = known(*args, **kwargs)
    return None if result is NotImplemented else result


def _decompositions() -> dict[Any, Callable[..., Any]]:
    import torch._decomp
    import torch._refs  # registers more decompositions

    return torch._decomp.decomposition_table
