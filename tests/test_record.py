# SPDX-License-Identifier: Apache-2.0
"""What a record turns into: a function, its gradient, its checks."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import has_kernel, write_op
from torch.autograd import gradcheck, gradgradcheck

import opforge
from opforge import discover
from opforge.build import cache, compile, load, ship
from opforge.build.plan import plan
from opforge.errors import RecordError

pytestmark = pytest.mark.usefixtures("cache_dir")

SMOOTH = """\
    import torch
    from opforge import Op

    op = Op(
        schema="smooth(Tensor x, Tensor w, Tensor? b, float scale, int n) -> Tensor y",
        reference=lambda x, w, b, scale, n: torch.sin(x) * w * scale * n + (0 if b is None else b),
        like="x",
    )
"""


@pytest.fixture(scope="module")
def smooth(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    """An op without a backward and without a kernel."""
    return opforge.load(write_op(tmp_path_factory.mktemp("smooth"), op_py=SMOOTH, cpp=None))


def doubles(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(s, dtype=torch.float64, generator=generator).requires_grad_() for s in shapes
    ]


def registered(op: opforge.Op) -> Callable[..., Any]:
    return getattr(getattr(torch.ops, op.namespace), op.name)


def test_a_derived_gradient_is_right(smooth: opforge.Op) -> None:
    x, w, b = doubles((3, 4), (3, 4), (3, 4))
    for call in (smooth, registered(smooth)):
        assert gradcheck(lambda *t, call=call: call(*t, 0.5, 3), (x, w, b))
        assert gradcheck(lambda *t, call=call: call(*t, None, 0.5, 3), (x, w))


def test_a_derived_gradient_fits_broadcast_inputs(smooth: opforge.Op) -> None:
    x, w, b = doubles((3, 4), (4,), (1, 1))
    assert gradcheck(lambda *t: smooth(*t, 0.5, 3), (x, w, b))


def test_a_derived_gradient_goes_only_where_it_is_asked_for(smooth: opforge.Op) -> None:
    x, w, b = doubles((3,), (3,), (3,))
    smooth(x, w.detach(), b, 1.0, 1).sum().backward()
    assert torch.allclose(x.grad, (x.cos() * w).detach())
    assert torch.equal(b.grad, torch.ones_like(b))
    assert w.grad is None


def test_a_derived_gradient_is_right_under_compile(smooth: opforge.Op) -> None:
    compiled = torch.compile(lambda *t: smooth(*t, 0.5, 3) + 1, fullgraph=True, backend="aot_eager")
    x, w, b = doubles((3, 4), (3, 4), (3, 4))
    expected = torch.autograd.grad((torch.sin(x) * w * 1.5 + b + 1).sum(), (x, w, b))
    found = torch.autograd.grad(compiled(x, w, b).sum(), (x, w, b))
    torch.testing.assert_close(found, expected)


def test_a_second_derivative_of_a_derived_gradient_raises(smooth: opforge.Op) -> None:
    x, w = doubles((3,), (3,))
    (first,) = torch.autograd.grad(smooth(x, w, None, 1.0, 1).sum(), x, create_graph=True)
    with pytest.raises(
        NotImplementedError, match=r"opforge\.smooth: gradients of this order are not"
    ):
        torch.autograd.grad(first.sum(), x)


def test_a_second_derivative_of_a_backward_op_is_right(tmp_path: Path) -> None:
    text = """\
        import torch
        from opforge import Backward, Op

        op = Op(
            schema="cubed(Tensor x) -> Tensor y",
            reference=lambda x: x**3,
            backward=Backward(
                "cubed_backward(Tensor grad_y, Tensor x) -> Tensor grad_x",
                lambda grad_y, x: 3 * x**2 * grad_y,
            ),
        )
    """
    cubed = opforge.load(write_op(tmp_path, op_py=text, cpp=None))
    (x,) = doubles((5,))
    assert gradcheck(cubed, (x,))
    assert gradgradcheck(cubed, (x,))


def test_a_backward_with_the_wrong_number_of_gradients_is_an_error(tmp_path: Path) -> None:
    text = """\
        from opforge import Op

        op = Op(
            schema="short_of_one(Tensor a, Tensor b) -> Tensor y",
            reference=lambda a, b: a * b,
            backward=lambda grad_y, a, b: grad_y * b,
        )
    """
    op = opforge.load(write_op(tmp_path, op_py=text, cpp=None))
    a, b = doubles((2,), (2,))
    with pytest.raises(RecordError, match="returned 1 gradients for 2 tensor inputs"):
        op(a, b).sum().backward()


def test_the_call_paths_agree(kernel_folder: Path, built: cache.Library) -> None:
    """Without gradient, with gradient, compiled, under a transform, and through torch.ops."""
    twofold = discover.load(kernel_folder)
    x = torch.randn(7, requires_grad=True)
    weight = torch.randn(7)
    with torch.no_grad():
        plain = twofold(x)
    assert has_kernel(kernel_folder)
    assert torch.equal(plain, 2 * x)

    def eager(x: torch.Tensor) -> torch.Tensor:
        return twofold(x)

    compiled = torch.compile(eager, fullgraph=True, backend="aot_eager")
    for path in (eager, compiled, registered(twofold)):
        y = path(x)
        (grad,) = torch.autograd.grad((y * weight).sum(), x)
        assert torch.equal(y, plain)
        assert torch.equal(grad, 2 * weight)
    _, pulled = torch.func.vjp(twofold, x.detach())
    assert torch.equal(pulled(weight)[0], 2 * weight)
    assert torch.equal(torch.func.vmap(twofold)(x.detach()[:, None])[:, 0], plain)


def test_load_returns_the_public_function(tmp_path: Path) -> None:
    text = """\
        from opforge import Op

        op = Op(schema="shifted(Tensor x, float by) -> Tensor y", reference=lambda x, by: x + by)


        def shifted(x, by=1.0):
            '''Adds a number.'''
            return op(x, by)
    """
    shifted = opforge.load(write_op(tmp_path / "op", op_py=text, cpp=None))
    assert shifted.__name__ == "shifted"
    assert shifted.__doc__ == "Adds a number."
    assert shifted(torch.zeros(2)).tolist() == [1, 1]
    assert opforge.load(str(tmp_path / "op")) is shifted


def test_load_returns_the_record_where_there_is_no_function(smooth: opforge.Op) -> None:
    assert isinstance(smooth, opforge.Op)


def test_a_record_that_is_not_loaded_says_so() -> None:
    op = opforge.Op(schema="loose(Tensor x) -> Tensor y", reference=abs)
    with pytest.raises(RecordError, match=r"loose is not loaded; use opforge\.load"):
        op(torch.ones(1))


X, W = torch.ones(2), torch.ones(2)


@pytest.mark.parametrize(
    ("args", "kind", "said"),
    [
        ((X, W, None, 1.0), TypeError, "smooth takes 5 arguments (x, w, b, scale, n), got 4"),
        ((None, W, None, 1.0, 1), TypeError, "smooth: x must be a torch.Tensor, got NoneType"),
        (([1.0], W, None, 1.0, 1), TypeError, "smooth: x must be a torch.Tensor, got list"),
        ((X, 3, None, 1.0, 1), TypeError, "smooth: w must be a torch.Tensor, got int"),
        ((X, W, None, "1", 1), TypeError, "smooth: scale must be a number, got str"),
        ((X, W, None, 1.0, 1.5), TypeError, "smooth: n must be of type int, got float"),
        (
            (X.int(), W, None, 1.0, 1),
            TypeError,
            "smooth: x has dtype torch.int32; supported: float32",
        ),
        ((X.to_sparse(), W, None, 1.0, 1), TypeError, "smooth: x has layout torch.sparse_coo"),
        (
            (X, W.to("meta"), None, 1.0, 1),
            ValueError,
            "must be on one device, got x on cpu, w on meta",
        ),
    ],
)
@pytest.mark.parametrize("needs_grad", [False, True])
def test_wrong_arguments_are_named(
    args: tuple[Any, ...], kind: type[Exception], said: str, needs_grad: bool, smooth: opforge.Op
) -> None:
    if needs_grad:
        args = tuple(
            a.clone().requires_grad_()
            if isinstance(a, torch.Tensor) and a.is_floating_point()
            else a
            for a in args
        )
    with pytest.raises(kind, match=re.escape(said)):
        smooth(*args)


def load_record(tmp_path: Path, text: str) -> Any:
    (tmp_path / "op.py").write_text(
        "import torch\nfrom opforge import Op\n" + textwrap.dedent(text)
    )
    return opforge.load(tmp_path)


def test_integers_and_masks_have_no_gradient_but_do_not_disturb(tmp_path: Path) -> None:
    take = load_record(
        tmp_path,
        """
        op = Op(schema="taken(Tensor x, Tensor index) -> (Tensor y, Tensor mask)",
                reference=lambda x, index: (x[index], x[index] > 0),
                dtypes=(torch.float32, torch.int64))
        """,
    )
    x = torch.randn(5, requires_grad=True)
    y, mask = take(x, torch.tensor([3, 3, 1]))
    assert not mask.requires_grad or mask.dtype == torch.bool
    y.sum().backward()
    assert x.grad.tolist() == [0, 1, 0, 2, 0]


@pytest.mark.parametrize(
    "schema",
    [
        "twice(Tensor x) -> Tensor x",
        "twice(Tensor grad_y, Tensor z) -> Tensor y",
        "twice(Tensor x, Tensor x_shape) -> Tensor y",
    ],
)
def test_two_things_of_one_name_are_refused(tmp_path: Path, schema: str) -> None:
    with pytest.raises(RecordError, match="would stand for two things"):
        load_record(tmp_path, f"op = Op(schema={schema!r}, reference=lambda *a: a[0])\n")


def test_an_op_takes_a_tensor(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="has no Tensor argument"):
        load_record(tmp_path, "op = Op(schema='made(int n) -> Tensor y', reference=torch.ones)\n")


def test_autocast_means_the_same_on_every_path(tmp_path: Path) -> None:
    product = load_record(
        tmp_path,
        """
        op = Op(schema="product(Tensor x, Tensor w) -> Tensor y",
                reference=lambda x, w: x @ w, autocast=torch.float32)
        """,
    )
    x = torch.randn(3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert product(x, x).dtype == torch.float32
        assert product(x.clone().requires_grad_(), x).dtype == torch.float32
        assert torch.ops.opforge_user.product(x, x).dtype == torch.float32


def test_a_wheels_library_that_does_not_fit_is_passed_over(
    tmp_path: Path, cache_dir: Path, untried: None, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = write_op(tmp_path / "op", name="passed", cpp="kernel")
    op = discover.find(str(folder))
    (library,) = compile.build([plan(op, "cpu")])
    (placed,) = ship.to_folder([library], folder / "prebuilt")
    manifest = placed.with_suffix(".json")
    manifest.write_text(manifest.read_text().replace('"f16c"', '"no-such-instruction"'))
    assert load.find(op, "cpu").path == library.path
    assert "no-such-instruction; looking further" in capfd.readouterr().err


# y = x * scale[0] and z = x + w; the backward is told which of its arguments it got.
DETAILED = """
    from opforge import Backward

    got = []

    def backward(grad_y, grad_z, x, scale, size):
        got.append((grad_y, grad_z, x, size))
        assert torch.equal(size, torch.tensor(3.0))
        grad = grad_y * scale + (0 if grad_z is None else grad_z)
        return grad, torch.zeros_like(scale), grad.new_empty(0)

    op = Op(
        schema="detailed(Tensor x, Tensor scale, Tensor w) -> (Tensor y, Tensor z, Tensor size)",
        reference=lambda x, scale, w: (x * scale, x + w),
        statistics={"size": lambda x, scale, w: torch.tensor(float(x.numel()))},
        backward=Backward(
            "detailed_backward(Tensor grad_y, Tensor? grad_z, Tensor? x, Tensor scale, Tensor size)"
            " -> (Tensor grad_x, Tensor grad_scale, Tensor grad_w)",
            backward,
            unsaved=lambda x, scale, w: ["x"] if scale.item() == 2 else [],
            shared={"w": "grad_z"},
        ),
    )
"""


def test_statistics_are_for_the_backward_alone(tmp_path: Path) -> None:
    detailed = load_record(tmp_path, DETAILED)
    x, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    result = detailed(x, torch.tensor(5.0), w)
    assert [r.tolist() for r in result] == [(x * 5).tolist(), (x + w).tolist()]
    found = torch.autograd.grad(result, (x, w), [torch.ones(3), 2 * torch.ones(3)])
    assert [g.tolist() for g in found] == [[7.0] * 3, [2.0] * 3]


def test_a_missing_gradient_is_none_where_the_schema_says_so_and_zeros_elsewhere(
    tmp_path: Path,
) -> None:
    detailed = load_record(tmp_path, DETAILED.replace('shared={"w": "grad_z"}', "shared={}"))
    got = sys.modules[detailed.backward.reference.__module__].got
    x, w = torch.randn(3, requires_grad=True), torch.randn(3)
    y, _ = detailed(x, torch.tensor(5.0), w)
    y.sum().backward()
    assert got[-1][1] is None
    _, z = detailed(x, torch.tensor(5.0), w)
    z.sum().backward()
    assert got[-1][0].tolist() == [0, 0, 0]
    assert got[-1][1].tolist() == [1, 1, 1]


def test_an_argument_that_the_backward_can_do_without_is_not_saved(tmp_path: Path) -> None:
    detailed = load_record(tmp_path, DETAILED)
    x, w = torch.randn(3, requires_grad=True), torch.randn(3)
    for scale, saved in ((2.0, False), (5.0, True)):
        kept: list[torch.Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, kept=kept: kept.append(t) or t, lambda t: t
        ):
            y, _ = detailed(x, torch.tensor(scale), w)
        assert any(t.shape == x.shape for t in kept) == saved
        assert torch.autograd.grad(y.sum(), x)[0].tolist() == [scale] * 3


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
            "reference=lambda x, scale, w: (x * scale, x + w),",
            'reference=lambda x, scale, w: (x * scale, x + w), own_dtypes={"index": ()},',
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
    ],
)
def test_details_that_do_not_fit_are_refused(
    tmp_path: Path, before: str, after: str, said: str
) -> None:
    assert before in DETAILED
    with pytest.raises(RecordError, match=re.escape(said)):
        load_record(tmp_path, DETAILED.replace(before, after))


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
