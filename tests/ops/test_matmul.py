# SPDX-License-Identifier: Apache-2.0
"""matmul: every kernel against float64, shapes that broadcast, gradients, TF32, what is refused."""

from __future__ import annotations

import pytest
import torch
from op_cases import SIM, each_device, each_real_device
from torch import Tensor

import opforge
from opforge import sim

SIMPLE = ["naive", "coalesced", "tiled", "registers"]
TENSOR_CORES = ["wmma", "mma", "hopper"]
WIDE, SHORT = [torch.float32, torch.float64], [torch.float16, torch.bfloat16]
ROUNDING = {
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
    torch.float32: 2.0**-20,
    torch.float64: 2.0**-49,
}
TF32 = 2.0**-10  # two operands, rounded to 11 bits

# Around the tiles of all kernels: one element, one more or less than a tile, aligned and not.
SIZES = [(1, 1, 1), (31, 33, 17), (64, 128, 32), (65, 129, 72), (130, 258, 40)]

each_kernel_and_dtype = pytest.mark.parametrize(
    ("kernel", "dtype"),
    [(k, d) for k in SIMPLE for d in (*WIDE, torch.bfloat16)]
    + [(k, d) for k in TENSOR_CORES for d in SHORT],
    ids=lambda v: str(v).removeprefix("torch."),
)


def make(*shape: int, dtype: torch.dtype, device: str, transposed: bool = False) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape) + transposed)
    if transposed:
        shape = (*shape[:-2], shape[-1], shape[-2])
    values = torch.randn(shape, generator=generator, dtype=torch.float64).to(device, dtype)
    return (values.mT if transposed else values).requires_grad_()


def near(y: Tensor, a: Tensor, b: Tensor, short: float = 0.0) -> None:
    """Within a few roundings of the sum of absolute products."""
    a, b = a.detach().double(), b.detach().double()
    bound = (a.abs() @ b.abs()) * max(short, ROUNDING[y.dtype]) * 1.5
    assert ((y.detach().double() - a @ b).abs() <= bound).all()


@each_device
@each_kernel_and_dtype
def test_every_kernel_at_sizes_around_its_tile(kernel, dtype, device):
    for m, n, k in SIZES:
        a, b = make(m, k, dtype=dtype, device=device), make(k, n, dtype=dtype, device=device)
        near(opforge.matmul(a, b, kernel), a, b)


@each_device
@each_kernel_and_dtype
def test_transposed_and_strided_operands(kernel, dtype, device):
    for ta in (False, True):
        for tb in (False, True):
            a = make(40, 24, dtype=dtype, device=device, transposed=ta)
            b = make(24, 48, dtype=dtype, device=device, transposed=tb)
            near(opforge.matmul(a, b, kernel), a, b)
    a, b = make(24, 80, dtype=dtype, device=device), make(40, 56, dtype=dtype, device=device)
    near(opforge.matmul(a[1:, ::2], b[:, 3:], kernel), a[1:, ::2], b[:, 3:])


@each_device
@pytest.mark.parametrize("kernel", ["tiled", "mma", "hopper", None])
def test_shapes_broadcast_as_those_of_torch(kernel, device):
    dtype = torch.bfloat16
    for left, right in [
        ((2, 3, 5, 8), (8, 6)),
        ((5, 8), (4, 8, 6)),
        ((2, 1, 5, 8), (3, 8, 6)),
        ((3, 5, 7), (3, 7, 6)),
        ((8,), (8, 6)),
        ((2, 5, 8), (8,)),
        ((8,), (3, 8, 6)),
        ((8,), (8,)),
        ((2, 0, 8), (8, 6)),
        ((0, 5, 8), (0, 8, 6)),
        ((2, 5, 0), (2, 0, 6)),
    ]:
        a, b = make(*left, dtype=dtype, device=device), make(*right, dtype=dtype, device=device)
        y, expected = opforge.matmul(a, b, kernel), a.detach().double() @ b.detach().double()
        assert y.shape == expected.shape
        torch.testing.assert_close(y.double(), expected, atol=0.05, rtol=0.02)


@each_device
@pytest.mark.parametrize("kernel", [*SIMPLE, *TENSOR_CORES, None])
def test_gradients_are_products_by_the_same_kernel(kernel, device):
    dtype = torch.bfloat16 if kernel in TENSOR_CORES else torch.float32
    for shape in [(), (2,)]:
        a = make(*shape, 20, 24, dtype=dtype, device=device)
        b = make(*shape, 24, 16, dtype=dtype, device=device, transposed=True)
        g = make(*shape, 20, 16, dtype=dtype, device=device).detach()
        grad_a, grad_b = torch.autograd.grad(opforge.matmul(a, b, kernel), [a, b], g)
        near(grad_a, g, b.mT)
        near(grad_b, a.mT, g)
        (alone,) = torch.autograd.grad(opforge.matmul(a.detach(), b, kernel), [b], g)
        assert torch.equal(alone, grad_b)


@each_device
def test_the_gradient_of_a_shared_matrix_sums_over_batches(device):
    a = make(3, 4, 5, dtype=torch.float64, device=device)
    b = make(5, 6, dtype=torch.float64, device=device)
    opforge.matmul(a, b).sum().backward()
    torch.testing.assert_close(b.grad, a.detach().sum((0, 1)).unsqueeze(1).expand(5, 6))


@each_device
@pytest.mark.parametrize("kernel", ["mma", "hopper", None])
def test_tf32(kernel, device):
    for m, n, k in [(20, 24, 16), (70, 33, 37)]:
        a = make(m, k, dtype=torch.float32, device=device)
        b = make(k, n, dtype=torch.float32, device=device)
        near(opforge.matmul(a, b, kernel, tf32=True), a, b, TF32)
        near(opforge.matmul(b.mT, a.mT, kernel, tf32=True), b.mT, a.mT, TF32)


@pytest.mark.sim
@pytest.mark.parametrize("kernel", ["mma", "hopper"])
def test_tf32_rounds_what_is_multiplied(kernel):
    a = torch.full((16, 16), 1 + 2.0**-12)
    with sim.active():
        assert (opforge.matmul(a, torch.eye(16), kernel, tf32=True) == 1).all()
        assert torch.equal(opforge.matmul(a, torch.eye(16)), a)


@pytest.mark.sim
@pytest.mark.parametrize("kernel", [*SIMPLE, *TENSOR_CORES])
def test_what_is_beyond_the_matrices_does_not_count(kernel):
    """NaN around them would show."""
    dtype = torch.bfloat16
    around = torch.full((90, 90), float("nan"), dtype=dtype)
    for size in (24, 27):
        a, b = around.clone()[8 : 8 + size, 16:48], around.clone()[8:40, 8 : 8 + size]
        a.fill_(1), b.fill_(2)
        with sim.active():
            assert (opforge.matmul(a, b, kernel) == 64).all()


@pytest.mark.sim
def test_sums_are_in_float32_for_16_bit_numbers():
    a, b = torch.full((1, 4096), 1.0, dtype=torch.float16), torch.full((4096, 1), 1.0).half()
    with sim.active():
        for kernel in [*SIMPLE, *TENSOR_CORES]:  # in float16, 2048 + 1 is 2048
            assert opforge.matmul(a, b, kernel).item() == 4096


@pytest.mark.sim
def test_without_a_name_the_best_kernel_is_used():
    """They differ in how they round half of the last bit that TF32 keeps."""
    a, one = torch.full((16, 16), 1 + 2.0**-11), torch.eye(16)
    with sim.active():
        assert (opforge.matmul(a, one, "mma", tf32=True) == 1 + 2.0**-10).all()
        assert (opforge.matmul(a, one, "hopper", tf32=True) == 1).all()
        assert (opforge.matmul(a, one, tf32=True) == 1).all()
        assert torch.equal(opforge.matmul(a, one), a)


@each_real_device
@pytest.mark.parametrize(
    ("left", "right", "options", "error", "says"),
    [
        ((3, 4), (4, 5), {"kernel": "fast"}, ValueError, "kernel must be one of None, 'naive'"),
        ((3, 4), (5, 4), {}, ValueError, r"columns of a and the rows of b .*pass b\.mT"),
        ((3, 4), (5, 6), {}, ValueError, r"columns of a and the rows of b must agree, got a \(3"),
        ((2, 3, 4), (5, 4, 6), {}, ValueError, "dims before the last two must broadcast"),
        ((), (4, 5), {}, ValueError, "a must have at least one dimension"),
        ((3, 4), (), {}, ValueError, "b must have at least one dimension"),
        ((3, 4), (4, 5), {"kernel": "mma"}, TypeError, r"float32 with tf32=True\), but a is"),
        ((3, 4), (4, 5), {"kernel": "wmma"}, TypeError, "'wmma' takes float16 and bfloat16, but"),
        ((3, 4), (4, 5), {"kernel": "naive", "tf32": True}, ValueError, "for the kernels 'mma'"),
    ],
)
def test_what_is_refused(left, right, options, error, says, device):
    a, b = torch.ones(left, device=device), torch.ones(right, device=device)
    with pytest.raises(error, match=says):
        opforge.matmul(a, b, **options)


@each_real_device
def test_dtypes_that_do_not_fit(device):
    a = torch.ones(3, 3, device=device)
    with pytest.raises(TypeError, match=r"a is torch.float32 but b is torch.float16; convert one"):
        opforge.matmul(a, a.half())
    with pytest.raises(TypeError, match=r"tf32=True is for float32, but a is torch.float16"):
        opforge.matmul(a.half(), a.half(), tf32=True)
    with pytest.raises(TypeError, match=r"kernel='hopper' takes .*pass kernel='registers'"):
        opforge.matmul(a.double(), a.double(), "hopper")


@pytest.mark.parametrize("device", [SIM], indirect=True)
def test_compiled_code_is_the_same(device):
    a, b = (make(8, 8, dtype=torch.bfloat16, device=device).detach() for _ in range(2))
    compiled = torch.compile(lambda x, y: opforge.matmul(x, y, "mma"), backend="eager")
    torch.testing.assert_close(compiled(a, b), a @ b)


@pytest.mark.sim
@pytest.mark.nightly
def test_without_a_name_the_gpu_decides():
    a, b = torch.randn(40, 24, dtype=torch.bfloat16), torch.randn(24, 16, dtype=torch.bfloat16)
    for device, kernel in ((sim.A100, "matmul_mma"), (sim.H200, "hopper_product")):
        with sim.active("race", device=device, traffic=True) as calls:
            opforge.matmul(a, b)
        assert kernel in calls[-1].launches[-1].kernel
