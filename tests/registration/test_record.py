# SPDX-License-Identifier: Apache-2.0
"""What a record turns into: a function, its gradient, its checks."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import has_kernel, load_record, write_op
from torch.autograd import gradcheck, gradgradcheck

import opforge
from opforge import discover
from opforge.build import cache, compile, load
from opforge.build.plan import plan
from opforge.errors import RecordError
from opforge.ship.folder import to_folder

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


def test_a_record_imports_its_siblings_in_the_version_it_was_loaded_with(tmp_path: Path) -> None:
    text = """\
        from opforge import Op

        from . import sizes
        from .parts.formula import times

        op = Op(schema="tenfold(Tensor x) -> Tensor y", reference=times(sizes.FACTOR))
    """
    folder = write_op(tmp_path / "op", op_py=text, cpp=None)
    (folder / "sizes.py").write_text("FACTOR = 10\n")
    (folder / "parts").mkdir()
    (folder / "parts" / "formula.py").write_text("def times(n):\n    return lambda x: n * x\n")
    first = opforge.load(folder)
    assert first(torch.ones(1)) == 10
    (folder / "sizes.py").write_text("FACTOR = 1000\n")
    assert opforge.load(folder)(torch.ones(1)) == 1000
    assert first(torch.ones(1)) == 10


def test_a_built_in_op_that_changed_is_loaded_again(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(discover, "BUILTIN_FOLDER", tmp_path)
    text = "from opforge import Op\nop = Op(schema='edited(Tensor x) -> Tensor y', reference={})\n"
    folder = write_op(tmp_path / "edited", op_py=text.format("abs"), cpp=None)
    first = discover.load_folder(folder).op
    (folder / "op.py").write_text(text.format("lambda x: 3 * x"))
    second = discover.load_folder(folder).op
    assert second(-torch.ones(1)) == -3
    assert first(-torch.ones(1)) == 1
    assert first.namespace == "opforge" != second.namespace


def test_a_sibling_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    text = "from .helper import reference\n"
    folder = write_op(tmp_path / "op", op_py=text, cpp=None)
    with pytest.raises(
        RecordError, match=r"op\.py cannot be loaded: ModuleNotFoundError: .*helper"
    ):
        opforge.load(folder)
    (folder / "helper.py").write_text("from opforge import Op\nreference = abs\n")
    (folder / "op.py").write_text(
        "from opforge import Op\nfrom .helper import reference\n"
        "op = Op(schema='mended(Tensor x) -> Tensor y', reference=reference)\n"
    )
    assert opforge.load(folder)(-torch.ones(1)) == 1


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


def test_a_derived_gradient_is_right_for_complex_tensors(tmp_path: Path) -> None:
    op = load_record(
        tmp_path,
        """
        op = Op(
            schema="rotate(Tensor z, Tensor angle) -> Tensor y",
            reference=lambda z, angle: z * torch.polar(torch.ones_like(angle), angle),
            dtypes=(torch.complex64, torch.complex128),
            own_dtypes={"angle": (torch.float32, torch.float64)},
        )
        """,
    )
    z = torch.randn(5, dtype=torch.complex128, requires_grad=True)
    angle = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(op, (z, angle))


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
        "twice(Tensor x, bool may_overwrite) -> Tensor y",
    ],
)
def test_two_things_of_one_name_are_refused(tmp_path: Path, schema: str) -> None:
    with pytest.raises(RecordError, match="would have two meanings"):
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
    (placed,) = to_folder([library], folder / "prebuilt")
    manifest = placed.with_suffix(".json")
    manifest.write_text(manifest.read_text().replace('"f16c"', '"no-such-instruction"'))
    assert load.find(op, "cpu").path == library.path
    assert "no-such-instruction; using the cache or the compiler instead" in capfd.readouterr().err
