# SPDX-License-Identifier: Apache-2.0
"""Details of a record: statistics, dtypes of single arguments, what a backward keeps and shares."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import load_record

from opforge.errors import RecordError

pytestmark = pytest.mark.usefixtures("cache_dir")

# y = x * scale and z = x + w for three elements. The backward keeps what it was given, and is
# wrong without the statistic.
DETAILED = """
    from opforge import Backward

    got = []

    def backward(grad_y, grad_z, x, scale, size):
        got.append((grad_y, grad_z, x))
        grad = grad_y * scale * (size - 2) + (0 if grad_z is None else grad_z)
        return grad, torch.zeros_like(scale), grad.new_empty(0)

    op = Op(
        schema="detailed(Tensor x, Tensor scale, Tensor w, bool lean) "
        "-> (Tensor y, Tensor z, Tensor size)",
        reference=lambda x, scale, w, lean: (x * scale, x + w),
        statistics={"size": lambda x: x.new_full((), float(x.numel()))},
        backward=Backward(
            "detailed_backward(Tensor grad_y, Tensor? grad_z, Tensor? x, Tensor scale, Tensor size)"
            " -> (Tensor grad_x, Tensor grad_scale, Tensor grad_w)",
            backward,
            unsaved=lambda lean: ["x"] if lean else [],
            shared={"w": "grad_z"},
        ),
    )
"""
FIVE = torch.tensor(5.0)


def inputs() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)


def test_every_call_path_hides_the_statistics_and_shares_the_gradient(tmp_path: Path) -> None:
    detailed = load_record(tmp_path, DETAILED)
    x, w = inputs()

    def run(x: torch.Tensor, w: torch.Tensor) -> Any:
        return detailed(x, FIVE, w, False)

    with torch.no_grad():
        plain = run(x, w)
    assert [r.tolist() for r in plain] == [(x * 5).tolist(), (x + w).tolist()]
    seeds = (torch.ones(3), 2 * torch.ones(3))
    for path in (run, torch.compile(run, fullgraph=True, backend="aot_eager")):
        result = path(x, w)
        assert [r.tolist() for r in result] == [r.tolist() for r in plain]
        found = torch.autograd.grad(result, (x, w), seeds)
        assert [g.tolist() for g in found] == [[7.0] * 3, [2.0] * 3]
    _, pull = torch.func.vjp(run, x.detach(), w.detach())
    assert [g.tolist() for g in pull(seeds)] == [[7.0] * 3, [2.0] * 3]
    batched = torch.func.vmap(run)(x.detach().expand(4, 3), w.detach().expand(4, 3))
    assert [r.tolist() for r in batched] == [[r.tolist()] * 4 for r in plain]


def test_a_missing_gradient_is_none_where_the_schema_says_so_and_zeros_elsewhere(
    tmp_path: Path,
) -> None:
    detailed = load_record(tmp_path, DETAILED.replace('shared={"w": "grad_z"}', "shared={}"))
    got = sys.modules[detailed.backward.reference.__module__].got
    x, w = inputs()
    y, _ = detailed(x, FIVE, w.detach(), False)
    y.sum().backward()
    assert got[-1][1] is None
    _, z = detailed(x, FIVE, w.detach(), False)
    z.sum().backward()
    assert got[-1][0].tolist() == [0, 0, 0]
    assert got[-1][1].tolist() == [1, 1, 1]


def test_an_argument_that_the_backward_can_do_without_is_not_saved(tmp_path: Path) -> None:
    detailed = load_record(tmp_path, DETAILED)
    x, w = inputs()
    for lean in (True, False):
        kept: list[torch.Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, kept=kept: kept.append(t) or t, lambda t: t
        ):
            y, _ = detailed(x, FIVE, w.detach(), lean)
        assert any(t.shape == x.shape for t in kept) == (not lean)
        assert torch.autograd.grad(y.sum(), x)[0].tolist() == [5.0] * 3


def test_a_gradient_can_be_another_that_is_returned(tmp_path: Path) -> None:
    text = """
        from opforge import Backward

        op = Op(schema="summed(Tensor a, Tensor b) -> Tensor y", reference=lambda a, b: a + b,
                backward=Backward("summed_backward(Tensor grad_y) -> (Tensor grad_a, "
                                  "Tensor grad_b)",
                                  lambda grad_y: (grad_y * 1, grad_y.new_empty(0)),
                                  shared={"b": "grad_a"}))
    """
    summed = load_record(tmp_path, text)
    a, b = inputs()
    found = torch.autograd.grad(summed(a, b), (a, b), torch.arange(3.0))
    assert [g.tolist() for g in found] == [[0, 1, 2]] * 2
    assert torch.autograd.grad(summed(a.detach(), b), b, torch.arange(3.0))[0].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            'statistics={"size"',
            'statistics={"z"',
            "statistics of detailed must be the last returns of its schema, in order; the record "
            "has z, the schema returns y, z, size",
        ),
        (
            "reference=lambda x, scale, w, lean: (x * scale, x + w),",
            'reference=lambda x, scale, w, lean: (x, x), own_dtypes={"index": ()},',
            "detailed has own_dtypes for 'index', which is no tensor of its schema",
        ),
        (
            'shared={"w": "grad_z"}',
            'shared={"w": "grad_q"}',
            "detailed_backward shares the gradient of 'w' as 'grad_q'; that must be",
        ),
        (
            'shared={"w": "grad_z"}',
            'shared={"w": "z"}',
            "detailed_backward shares the gradient of 'w' as 'z'; that must be",
        ),
        (
            'shared={"w": "grad_z"}',
            'shared={"v": "grad_z"}',
            "detailed_backward shares the gradient of 'v' as 'grad_z'; that must be",
        ),
        (
            'shared={"w": "grad_z"}',
            'shared={"w": "grad_size"}',
            "detailed_backward asks for 'grad_size', but size is a statistic",
        ),
        (
            "Tensor scale, Tensor size)",
            "Tensor scale, Tensor grad_size)",
            "detailed_backward asks for 'grad_size', but size is a statistic: callers do not "
            "see it, so it has no gradient; ask for 'size' itself",
        ),
        (
            'unsaved=lambda lean: ["x"] if lean else []',
            'unsaved="x"',
            "the record of detailed: unsaved must be a function, got 'x'",
        ),
        (
            "unsaved=lambda lean:",
            "unsaved=lambda x, size, lean:",
            "the record of detailed: unsaved asks for 'size', which is not an argument of the "
            "schema; it may ask for x, scale, w, lean",
        ),
    ],
)
def test_details_that_do_not_fit_are_refused(
    tmp_path: Path, before: str, after: str, said: str
) -> None:
    assert before in DETAILED
    with pytest.raises(RecordError, match=re.escape(said)):
        load_record(tmp_path, DETAILED.replace(before, after))


@pytest.mark.parametrize("names", ["x", ["lost"], ["x", "grad_y"]])
def test_unsaved_names_that_are_no_inputs_are_refused(tmp_path: Path, names: Any) -> None:
    detailed = load_record(tmp_path, DETAILED.replace('["x"] if lean else []', repr(names)))
    said = f"unsaved of detailed_backward returned {names!r}; it must return a list of inputs"
    with pytest.raises(RecordError, match=re.escape(said)):
        detailed(torch.ones(3, requires_grad=True), FIVE, torch.ones(3), True)


def test_statistics_need_a_backward_that_is_an_op(tmp_path: Path) -> None:
    text = """
        op = Op(schema="counted(Tensor x) -> (Tensor y, Tensor size)", reference=lambda x: x,
                statistics={"size": lambda x: torch.tensor(float(x.numel()))})
    """
    with pytest.raises(RecordError, match="counted has statistics but no Backward"):
        load_record(tmp_path, text)


def test_an_argument_can_have_dtypes_of_its_own(tmp_path: Path) -> None:
    text = """
        op = Op(schema="picked(Tensor x, Tensor index) -> Tensor y",
                reference=lambda x, index: x[index], own_dtypes={"index": (torch.int64,)})
    """
    picked = load_record(tmp_path, text)
    x = torch.randn(5)
    assert torch.equal(picked(x, torch.tensor([4, 1])), x[[4, 1]])
    with pytest.raises(TypeError, match=r"index has dtype torch\.float32; supported: int64"):
        picked(x, torch.ones(2))
    with pytest.raises(TypeError, match=r"x has dtype torch\.int64; supported: float32"):
        picked(x.long(), torch.tensor([0]))


def test_autocast_leaves_dtypes_of_their_own_alone(tmp_path: Path) -> None:
    text = """
        op = Op(schema="scaled(Tensor x, Tensor scale) -> Tensor y", autocast=torch.bfloat16,
                reference=lambda x, scale: (x * scale).to(x.dtype),
                own_dtypes={"scale": (torch.float32,)})
    """
    scaled = load_record(tmp_path, text)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = scaled(torch.ones(3), torch.full((3,), 1.0078125))
    assert y.dtype == torch.bfloat16
    assert y.tolist() == [1.0078125] * 3


def test_gradients_take_the_strides_of_what_is_always_saved(tmp_path: Path) -> None:
    text = """
        from opforge import Backward

        op = Op(schema="kept(Tensor x, bool lean) -> Tensor y", like="x",
                reference=lambda x, lean: x * 2,
                backward=Backward("kept_backward(Tensor grad_y, Tensor? x) -> Tensor grad_x",
                                  lambda grad_y, x: grad_y * 2,
                                  unsaved=lambda lean: ["x"] if lean else []))
    """
    kept = load_record(tmp_path, text)
    for lean in (True, False):
        x = torch.randn(3, 4).t().requires_grad_()
        kept(x, lean).sum().backward()
        assert x.grad.tolist() == torch.full((4, 3), 2.0).tolist()


def test_a_backward_may_be_composed_where_the_forward_is_not() -> None:
    from opforge.op import Backward, Op
    from opforge.registration.register import register
    from opforge.ship.exportable import must_have_kernels

    ran = []

    def composed(grad_y, x):
        ran.append(grad_y)
        return 2 * grad_y * x

    op = Op(
        schema="half_composed(Tensor x) -> Tensor y",
        reference=lambda x: x * x,
        backward=Backward(
            "half_composed_backward(Tensor grad_y, Tensor x) -> Tensor grad_x",
            lambda grad_y, x: grad_y * x * 2,
            composed=composed,
        ),
        namespace="opforge_test_half_composed",
    )
    assert [s.name for s in op.functions] == ["half_composed", "half_composed_backward"]
    assert [s.name for s in op.kernels] == ["half_composed"]
    assert not op.self_contained
    op.folder = Path(__file__).parent
    register(op)
    x = torch.randn(3, requires_grad=True)
    for run in (op, torch.compile(op, backend="aot_eager", fullgraph=True)):
        (grad,) = torch.autograd.grad(run(x), x, torch.ones(3))
        assert torch.equal(grad, 2 * x)
    assert len(ran) == 2
    with pytest.raises(RecordError, match="the backward of half_composed is composed"):
        must_have_kernels(op)


def test_a_backward_may_overwrite_what_nobody_reads_again() -> None:
    from opforge.op import Backward, Op
    from opforge.registration.register import register

    seen = []

    def reference(grad_y, x, half, may_overwrite):
        return grad_y * x

    def composed_backward(grad_y, x, half, may_overwrite):
        seen.append(may_overwrite)
        return grad_y * x

    op = Op(
        schema="halved_square(Tensor x) -> (Tensor y, Tensor half)",
        reference=lambda x: x * x / 2,
        statistics={"half": lambda x: x / 2},
        composed=lambda x: (x * x / 2, x / 2),
        backward=Backward(
            "halved_square_backward(Tensor grad_y, Tensor x, Tensor half, bool may_overwrite) "
            "-> Tensor grad_x",
            reference,
            composed=composed_backward,
        ),
        namespace="opforge_test_may_overwrite",
    )
    register(op)
    x = torch.randn(3, requires_grad=True)
    ones = torch.ones(3)
    torch.autograd.grad(op(x), x, ones)
    assert seen == [True]
    torch.autograd.grad(op(x), x, ones, retain_graph=True)
    torch.autograd.grad(op(x), x, ones, create_graph=True, retain_graph=False)
    torch.autograd.grad(op(x), x, torch.ones(2, 3), is_grads_batched=True)
    torch.autograd.grad(torch.compile(op, backend="aot_eager")(x), x, ones)
    assert torch.equal(torch.func.grad(lambda x: op(x).sum())(x), x)
    assert seen[1:] == [False] * 6
