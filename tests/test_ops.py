# SPDX-License-Identifier: Apache-2.0
"""Every built-in op against float64 truth, on the CPU and, where there is one, on a GPU."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
import truth
from torch.library import opcheck

import opforge
from opforge import discover
from opforge.op import Make, Op, as_tuple

DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)]
OPS = discover.builtin_names()

each_op = pytest.mark.parametrize("name", OPS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))
each_device = pytest.mark.parametrize("device", DEVICES)


def record(name: str) -> Op:
    return discover.find(name)


def differentiable(case: tuple) -> list[torch.Tensor]:
    return [a for a in case if isinstance(a, torch.Tensor)]


def cast(case: tuple, dtype: torch.dtype) -> tuple:
    return tuple(
        a.detach().to(dtype).requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a
        for a in case
    )


def terms(op: Op, case: tuple, output: torch.Tensor) -> int:
    """How many terms an element of an output or gradient may add up."""
    most = max((t.numel() for t in differentiable(case)), default=1)
    return max(most // max(output.numel(), 1), 1)


def largest(tensors: list[torch.Tensor]) -> float:
    return max((float(t.detach().double().abs().max()) for t in tensors if t.numel()), default=1.0)


def compare_gradients(op: Op, case: tuple, grads_for=None) -> None:
    """The kernel's gradients against those of the float64 reference, for one case."""
    run, dtype = op.reference, differentiable(case)[0].dtype
    ours, theirs, exact = cast(case, dtype), cast(case, dtype), cast(case, torch.float64)
    outputs = as_tuple(op(*ours))
    make_grad = grads_for or (lambda o: torch.randn(o.shape, dtype=torch.float64).to(o))
    grads = [make_grad(o) for o in outputs]
    for values, result in ((ours, outputs), (theirs, as_tuple(run(*theirs)))):
        torch.autograd.backward(result, [g.to(r.dtype) for g, r in zip(grads, result, strict=True)])
        assert all(t.grad is not None for t in differentiable(values))
    torch.autograd.backward(as_tuple(run(*exact)), [g.double() for g in grads])
    names = [a.name for a in op.forward.args if a.is_tensor]
    for i, name in enumerate(names):
        got = differentiable(ours)[i].grad
        truth.check(
            got,
            differentiable(theirs)[i].grad,
            differentiable(exact)[i].grad,
            k=3,
            summed=terms(op, case, got),
            scale=largest(grads),
            what=f"grad_{name} of {op.name}",
        )


@each_device
@each_dtype
@each_op
def test_forward_matches_truth(name, dtype, device):
    op = record(name)
    for case in op.iter_cases(Make(dtype, device)):
        outputs = as_tuple(op(*case))
        theirs = as_tuple(op.reference(*case))
        exact = as_tuple(op.reference(*cast(case, torch.float64)))
        for got, torchs, right in zip(outputs, theirs, exact, strict=True):
            scale = largest(differentiable(case))
            truth.check(got, torchs, right, 2, terms(op, case, got), scale, what=name)
            if op.like is None:
                assert got.is_contiguous()


@each_device
@each_dtype
@each_op
def test_backward_matches_truth(name, dtype, device):
    op = record(name)
    torch.manual_seed(0)
    for case in op.iter_cases(Make(dtype, device, requires_grad=True)):
        compare_gradients(op, case)


@each_device
@each_op
def test_backward_takes_strided_gradients(name, device):
    """What torch.cat and .sum() hand back: narrow views and stride 0."""
    op = record(name)
    torch.manual_seed(0)

    def narrow(o):
        wide = torch.randn(*o.shape[:-1], o.shape[-1] + 3, dtype=torch.float64).to(o)
        return wide[..., 1 : o.shape[-1] + 1]

    def expanded(o):
        return torch.ones((), dtype=o.dtype, device=o.device).expand(o.shape)

    def transposed(o):
        return torch.randn(*reversed(o.shape)).to(o).permute(*reversed(range(o.dim())))

    for dtype in (torch.float32, torch.bfloat16):
        for make_grad in (narrow, expanded, transposed):
            for case in op.iter_cases(Make(dtype, device, requires_grad=True)):
                if as_tuple(op.reference(*case))[0].dim() > 0:
                    compare_gradients(op, case, make_grad)


@each_device
@each_dtype
@pytest.mark.parametrize("name", ["relu", "vector_add", "scale_bias_relu"])
def test_layouts_give_the_bits_of_the_contiguous_result(name, dtype, device):
    op, make = record(name), Make(dtype, device)
    x, other = make(6, 10, 14), make(6, 10, 14)
    layouts = {
        "transposed": lambda t: t.transpose(0, 2).contiguous().transpose(0, 2),
        "stepped": lambda t: torch.stack([t, t], -1)[..., 0],
        "offset": lambda t: torch.cat([t.flatten()[:1], t.flatten()])[1:].view(t.shape),
        "padded rows": lambda t: torch.nn.functional.pad(t, (1, 2))[..., 1:-2],
    }
    arguments = {"relu": (x,), "vector_add": (x, other), "scale_bias_relu": (x, make(14), 0.75)}[
        name
    ]
    plain = op(*arguments)
    for label, change in layouts.items():
        changed = (change(arguments[0]), *arguments[1:])
        assert torch.equal(op(*changed), plain), label


@each_device
@each_dtype
@pytest.mark.parametrize("size", [1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 1023, 1025])
def test_sizes_around_the_vector_width(size, dtype, device):
    make = Make(dtype, device)
    x, bias = make(5, size), make(size)
    assert torch.equal(opforge.relu(x), torch.relu(x))
    assert torch.equal(opforge.vector_add(x, bias), x + bias)
    scaled = opforge.scale_bias_relu(x, bias, 0.5)
    exact = torch.relu(x.double() * 0.5 + bias.double())
    truth.check(scaled, torch.relu(x * 0.5 + bias), exact, k=2)
    for dim in (0, 1, None):
        got, theirs = opforge.reduce_sum(x, dim), torch.sum(x) if dim is None else torch.sum(x, dim)
        exact = torch.sum(x.double()) if dim is None else torch.sum(x.double(), dim)
        truth.check(got, theirs, exact, k=2, summed=5 * size, scale=largest([x]))


@each_device
@each_dtype
def test_special_values_are_those_of_the_reference(dtype, device):
    inf, nan, tiny = float("inf"), float("nan"), torch.finfo(dtype).tiny
    values = [0.0, -0.0, inf, -inf, nan, tiny / 4, -tiny / 4, torch.finfo(dtype).max, 1.0, -1.0]
    x = torch.tensor(values * 3, dtype=dtype, device=device).requires_grad_()
    # torch's own relu on a GPU turns -0.0 into 0.0; ours keeps the sign everywhere.
    expected = torch.where(x < 0, torch.zeros_like(x), x)
    y = opforge.relu(x)
    assert torch.equal(y.isnan(), expected.isnan())
    assert torch.equal(y.nan_to_num(nan=3.0), expected.nan_to_num(nan=3.0))
    assert torch.equal(torch.signbit(y[:2]), torch.tensor([False, True], device=device))
    y.backward(torch.ones_like(y))
    ours = x.grad.clone()
    x.grad = None
    torch.relu(x).backward(torch.ones_like(y))
    assert torch.equal(ours, x.grad)
    total = opforge.reduce_sum(x[:3].detach())
    assert total.item() == inf
    assert opforge.reduce_sum(x.detach()).isnan()
    huge = torch.tensor([torch.finfo(dtype).max] * 2, dtype=dtype, device=device)
    assert opforge.vector_add(huge, huge).isinf().all()


@each_device
def test_one_nan_stays_where_it_is(device):
    x = torch.randn(64, 129, device=device)
    x[17, 77] = float("nan")
    bias = torch.zeros(129, device=device)
    for y in (opforge.relu(x), opforge.vector_add(x, bias), opforge.scale_bias_relu(x, bias, 2.0)):
        assert torch.equal(y.isnan(), x.isnan())
    assert opforge.reduce_sum(x, 1).isnan().nonzero().tolist() == [[17]]
    assert opforge.reduce_sum(x, 0).isnan().nonzero().tolist() == [[77]]


@each_device
def test_more_than_65535_rows_and_long_rows(device):
    for shape in [(70_001, 3), (3, 70_001)]:
        x = torch.randn(shape, device=device, requires_grad=True)
        bias = torch.randn(shape[1], device=device, requires_grad=True)
        compare_gradients(record("scale_bias_relu"), (x, bias, 1.25))
        for dim in (None, [0], [1]):
            case = (x.detach(), dim, False)
            got = opforge.reduce_sum(*case)
            theirs, exact = (record("reduce_sum").reference(t, dim, False) for t in (x, x.double()))
            truth.check(got, theirs, exact, 2, terms(None, case, got), largest([x]))


@each_device
def test_signed_zeros_survive_broadcasting(device):
    zero = torch.tensor(-0.0, device=device)
    assert torch.signbit(opforge.relu(zero.expand(9))).all()
    assert torch.signbit(opforge.vector_add(zero.expand(3, 9), zero.expand(3, 1))).all()


@each_device
def test_sums_of_short_rows_and_low_matrices(device):
    """Runs shorter than a vector, columns of a batch of low matrices, sums of a scalar."""
    for shape, dim in [
        ((5000, 1), 1),
        ((5000, 3), 1),
        ((700, 16, 17), 1),
        ((300, 8, 32), 1),
        ((2, 3000, 64), (0, 2)),
        ((40, 100, 33), 1),
    ]:
        for dtype in (torch.float32, torch.bfloat16):
            x = torch.randn(shape, device=device, dtype=dtype)
            got, theirs = opforge.reduce_sum(x, dim), x.sum(dim)
            truth.check(got, theirs, x.double().sum(dim), 2, terms(None, (x,), got), largest([x]))
    x = torch.tensor(2.0, device=device, requires_grad=True)
    opforge.reduce_sum(x, 0).backward()
    assert x.grad.item() == 1.0


@each_device
def test_more_than_64_dimensions_are_refused(device):
    x = torch.ones([1] * 65, device=device)
    for call in (opforge.relu, opforge.reduce_sum, lambda t: opforge.vector_add(t, t)):
        with pytest.raises(RuntimeError, match="more than 64 dims are not supported"):
            call(x)


@each_device
def test_many_dimensions(device):
    """More dims than a kernel's index has room for."""
    x = torch.randn([2] * 14, device=device).permute(*torch.randperm(14).tolist())[..., 0]
    other = torch.randn([2, 1] * 6 + [2], device=device)
    assert torch.equal(opforge.relu(x), torch.relu(x))
    assert torch.equal(opforge.vector_add(x, other), x + other)
    for dims in ([0, 2, 4, 6, 8, 10, 12], [1, 3, 5, 7, 9, 11]):
        torch.testing.assert_close(opforge.reduce_sum(x, dims), x.sum(dims), atol=2e-5, rtol=1e-5)


@each_device
@each_op
def test_inputs_are_left_alone(name, device):
    op = record(name)
    for case in op.iter_cases(Make(torch.float32, device)):
        before = copy.deepcopy(case)
        op(*case)
        for a, b in zip(differentiable(case), differentiable(before), strict=True):
            assert torch.equal(a, b)


@each_device
@each_op
def test_the_same_bits_every_time(name, device):
    op = record(name)
    case = max(
        op.iter_cases(Make(torch.float32, device, requires_grad=True)),
        key=lambda c: sum(t.numel() for t in differentiable(c)),
    )

    def once():
        leaves = cast(case, torch.float32)
        result = op(*leaves)
        result.backward(torch.ones_like(result))
        return [result.detach(), *(t.grad for t in differentiable(leaves))]

    first = once()
    for _ in range(100):
        assert all(torch.equal(a, b) for a, b in zip(once(), first, strict=True))


@each_device
def test_sums_do_not_depend_on_the_number_of_threads(device):
    x = torch.randn(3000, 700, device=device)
    threads = torch.get_num_threads()
    try:
        results = []
        for n in (1, 2):
            torch.set_num_threads(n)
            results.append([opforge.reduce_sum(x, d) for d in (None, 0, 1)])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@each_device
@each_op
def test_opcheck(name, device):
    op = record(name)
    function = getattr(torch.ops.opforge, name).default
    for dtype in (torch.float32, torch.bfloat16):
        for grad in (False, True):
            for case in list(op.iter_cases(Make(dtype, device, requires_grad=grad)))[::2]:
                opcheck(function, case)


@each_device
@each_op
def test_gradcheck_and_double_backward(name, device):
    op = record(name)
    for case in op.iter_cases(Make(torch.float64, device, requires_grad=True)):
        tensors = differentiable(case)
        if 0 < sum(t.numel() for t in tensors) < 80:
            leaves = [t.detach().clone().requires_grad_() for t in tensors]
            scalars = case[len(tensors) :]
            assert torch.autograd.gradcheck(lambda *t: op(*t, *scalars), leaves)  # noqa: B023
            assert torch.autograd.gradgradcheck(lambda *t: op(*t, *scalars), leaves)  # noqa: B023


@each_device
@each_op
def test_compiles_without_a_break_static_and_dynamic(name, device):
    op = record(name)
    case = list(op.iter_cases(Make(torch.float32, device, requires_grad=True)))[4]
    for dynamic in (False, True):
        torch._dynamo.reset()
        compiled = torch.compile(lambda *a: op(*a) * 2, fullgraph=True, dynamic=dynamic)
        ours, plain = cast(case, torch.float32), cast(case, torch.float32)
        got, right = compiled(*ours), op(*plain) * 2
        torch.testing.assert_close(got, right)
        grad = torch.randn_like(right)
        got.backward(grad)
        right.backward(grad)
        for a, b in zip(differentiable(ours), differentiable(plain), strict=True):
            torch.testing.assert_close(a.grad, b.grad)


def test_dynamic_shapes_recompile_at_most_once():
    torch._dynamo.reset()
    counter = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(lambda x, b: opforge.scale_bias_relu(x, b, 0.5), backend=counter)
    for rows in (5, 6, 7, 8):
        compiled(torch.randn(rows, 8), torch.randn(8))
    assert counter.frame_count <= 2


@each_device
@each_op
def test_the_three_call_paths_agree(name, device):
    op = record(name)
    registered = getattr(torch.ops.opforge, name)
    for case in op.iter_cases(Make(torch.float32, device, requires_grad=True)):
        first, second = cast(case, torch.float32), cast(case, torch.float32)
        with torch.no_grad():
            plain = op(*case)
        eager, through_dispatcher = op(*first), registered(*second)
        assert torch.equal(plain, eager)
        assert torch.equal(plain, through_dispatcher)
        assert plain.stride() == eager.stride() == through_dispatcher.stride()
        grad = torch.randn_like(plain)
        eager.backward(grad)
        through_dispatcher.backward(grad)
        for a, b in zip(differentiable(first), differentiable(second), strict=True):
            assert torch.equal(a.grad, b.grad)


@each_device
@each_op
def test_vmap_equals_the_loop(name, device):
    op = record(name)
    for case in op.iter_cases(Make(torch.float32, device)):
        tensors, scalars = (
            differentiable(case),
            [a for a in case if not isinstance(a, torch.Tensor)],
        )
        batches = [torch.stack([t, 2 * t, -t], dim=-1) for t in tensors]
        got = torch.vmap(lambda *t: op(*t, *scalars), in_dims=-1)(*batches)  # noqa: B023
        right = torch.stack([op(*[b[..., i] for b in batches], *scalars) for i in range(3)])
        assert torch.equal(got, right)
        only_first = torch.vmap(lambda t: op(t, *case[1:]), in_dims=-1)(batches[0])  # noqa: B023
        right = torch.stack([op(batches[0][..., i], *case[1:]) for i in range(3)])
        assert torch.equal(only_first, right)


@each_device
def test_per_sample_gradients(device):
    x, bias = torch.randn(4, 5, 8, device=device), torch.randn(8, device=device)

    def loss(b, sample):
        return opforge.scale_bias_relu(sample, b, 0.5).sum()

    got = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(bias, x)
    right = torch.stack([torch.func.grad(loss)(bias, sample) for sample in x])
    torch.testing.assert_close(got, right)


@each_device
def test_jacobians(device):
    x = torch.randn(6, device=device, dtype=torch.float64)
    for ours, theirs in (
        (opforge.relu, torch.relu),
        (lambda t: opforge.vector_add(t, t * t), None),
    ):
        theirs = theirs or (lambda t: t + t * t)
        for transform in (torch.func.jacrev, lambda f: torch.func.jacrev(torch.func.jacrev(f))):
            torch.testing.assert_close(transform(ours)(x), transform(theirs)(x))
    _, pull = torch.func.vjp(opforge.relu, x)
    (rows,) = torch.vmap(pull)(torch.eye(6, device=device, dtype=torch.float64))
    torch.testing.assert_close(rows, torch.diag((x > 0).double()))


@each_device
def test_autocast_gives_the_documented_dtype(device):
    low, full = torch.randn(4, 8, device=device).bfloat16(), torch.randn(8, device=device)
    full.requires_grad_()
    with torch.autocast(device, dtype=torch.bfloat16):
        assert opforge.relu(low).dtype == torch.bfloat16
        assert opforge.vector_add(low, low).dtype == torch.bfloat16
        assert opforge.vector_add(low, full).dtype == torch.float32
        assert opforge.scale_bias_relu(low, full, 2.0).dtype == torch.float32
        assert opforge.reduce_sum(low, 0).dtype == torch.float32
        assert opforge.reduce_sum(low.double(), 0).dtype == torch.float64
        assert torch.ops.opforge.vector_add(low, full).dtype == torch.float32
        opforge.scale_bias_relu(low, full, 2.0).sum().backward()
    assert full.grad.dtype == torch.float32


@each_device
def test_saved_tensor_changed_before_backward(device):
    x = torch.randn(8, device=device, requires_grad=True)
    y = opforge.relu(x)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@each_device
def test_negative_views_are_resolved(device):
    x = torch.complex(torch.randn(9, device=device), torch.randn(9, device=device)).conj().imag
    assert x.is_neg()
    assert torch.equal(opforge.relu(x), torch.relu(x))
    assert torch.equal(opforge.vector_add(x, x), x + x)


@each_device
def test_checkpointing(device):
    x = torch.randn(4, 8, device=device, requires_grad=True)
    bias = torch.randn(8, device=device, requires_grad=True)
    run = torch.utils.checkpoint.checkpoint
    run(opforge.scale_bias_relu, x, bias, 0.5, use_reentrant=False).sum().backward()
    again, bias2 = x.detach().requires_grad_(), bias.detach().requires_grad_()
    opforge.scale_bias_relu(again, bias2, 0.5).sum().backward()
    assert torch.equal(x.grad, again.grad)
    assert torch.equal(bias.grad, bias2.grad)


def test_export_round_trip(tmp_path):
    program = torch.export.export(opforge.nn.ScaleBiasReLU(8, 0.5), (torch.randn(4, 8),))
    torch.export.save(program, tmp_path / "model.pt2")
    x = torch.randn(4, 8)
    loaded = torch.export.load(tmp_path / "model.pt2").module()
    assert torch.equal(loaded(x), opforge.scale_bias_relu(x, torch.zeros(8), 0.5))


@each_device
def test_modules(device):
    module = opforge.nn.ScaleBiasReLU(8, 0.5, device=device)
    torch.nn.init.normal_(module.bias)
    x = torch.randn(4, 8, device=device)
    right = torch.relu(x * 0.5 + module.bias)
    torch.testing.assert_close(module(x), right)
    assert list(module.state_dict()) == ["bias"]
    buffer = io.BytesIO()
    torch.save(module.state_dict(), buffer)
    buffer.seek(0)
    other = opforge.nn.ScaleBiasReLU(8, 0.5, device=device)
    other.load_state_dict(torch.load(buffer))
    for twin in (other, copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(twin(x), module(x))
    assert repr(module) == "ScaleBiasReLU(8, scale=0.5)"
    assert torch.equal(opforge.nn.ReLU()(x), torch.relu(x))
    with pytest.raises(ValueError, match="features must be at least 1, got 0"):
        opforge.nn.ScaleBiasReLU(0)


def test_discovered_ops_and_public_names_agree():
    for name in OPS:
        function = getattr(opforge, name)
        assert function.__name__ == name
        assert function.__doc__
        assert record(name).name == name
        assert name in dir(opforge)
    with pytest.raises(AttributeError, match="no attribute 'no_such_op'"):
        opforge.no_such_op  # noqa: B018


def test_cost_counts_every_tensor_once():
    cost = record("scale_bias_relu").cost(torch.zeros(16, 8), torch.zeros(8), 1.0)
    assert cost.bytes == 4 * (16 * 8 + 8 + 16 * 8)
    assert cost.operations == 3 * 16 * 8


@each_device
def test_forward_mode_is_refused_rather_than_wrong(device):
    import torch.autograd.forward_ad as fwd

    x = torch.randn(4, device=device)
    with (
        fwd.dual_level(),
        pytest.raises(NotImplementedError, match=r"relu does not support forward-mode"),
    ):
        opforge.relu(fwd.make_dual(x, torch.ones_like(x)))
    with fwd.dual_level():
        assert torch.equal(opforge.relu(x), torch.relu(x))
    with pytest.raises(NotImplementedError, match=r"relu does not support forward-mode"):
        torch.func.jvp(opforge.relu, (x,), (torch.ones_like(x),))
