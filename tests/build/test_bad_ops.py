# SPDX-License-Identifier: Apache-2.0
"""Op folders with a mistake in them: every one is told apart, in words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from helpers import REAL_CXX, planned, stub_nvcc, write_op, write_stub

import opforge
from opforge import discover
from opforge.build import compile
from opforge.errors import BuildError, RecordError

pytestmark = pytest.mark.usefixtures("cache_dir")


def test_a_path_that_is_no_folder(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=f"{tmp_path}/nothing is not a folder; an op is a folder"):
        opforge.load(tmp_path / "nothing")


def test_a_folder_that_is_no_op(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=f"{tmp_path} is not an op folder: it has no op.py"):
        opforge.load(tmp_path)


def test_a_name_that_is_neither_an_op_nor_a_folder() -> None:
    with pytest.raises(
        RecordError, match=r"'rellu' is neither a built-in op \(.*relu.*\) nor an op"
    ):
        discover.find("rellu")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", r"has no Op record; it must make exactly one: op = Op\(...\)"),
        (
            "from opforge import Op\n"
            "a = Op(schema='a(Tensor x) -> Tensor y', reference=abs)\n"
            "b = Op(schema='b(Tensor x) -> Tensor y', reference=abs)\n",
            "has 2 Op records; it must make exactly one",
        ),
        ("from opforge import Op\nop = Op(reference=abs)", "the record has no schema; give one"),
        (
            "from opforge import Op\nop = Op(schema='a(Tensor x) -> Tensor y')",
            "the record of a has no reference; pass reference=",
        ),
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def f(:", "SyntaxError"),
    ],
)
def test_a_bad_op_py_is_named_with_the_reason(text: str, said: str, tmp_path: Path) -> None:
    folder = write_op(tmp_path / "op", op_py=text)
    with pytest.raises(RecordError, match=f"(?s){folder}/op.py.*{said}"):
        opforge.load(folder)


def schema_error(schema: str, tmp_path: Path) -> str:
    text = f"from opforge import Op\nop = Op(schema={schema!r}, reference=abs)"
    with pytest.raises(RecordError) as caught:
        opforge.load(write_op(tmp_path / "op", op_py=text))
    return str(caught.value)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("a(Tensor x, Scalar s) -> Tensor y", "s has type Scalar.*a number is float or int, never"),
        ("a(Tensor x, str s) -> Tensor y", "s has type str, which the stable ABI cannot pass"),
        ("a(Tensor(a!) x) -> Tensor y", "x is marked as aliased or mutated; ops are functional"),
        ("a(Tensor x) -> Tensor", "every argument and return needs a name"),
        ("a(Tensor x) -> ()", "returns nothing; an op must return at least one tensor"),
        ("a(Tensor x", "cannot be parsed"),
    ],
)
def test_a_bad_schema_is_shown_with_the_reason(schema: str, said: str, tmp_path: Path) -> None:
    error = schema_error(schema, tmp_path)
    assert repr(schema) in error
    assert re.search(said, error)


ODD_NAMES = ["../x", "a;rm", "a b", "A", "1a", "a/b", "$x", "", "a\n"]


@pytest.mark.parametrize("name", [*ODD_NAMES, "ä", "a.b"])
def test_an_odd_op_name_is_rejected_before_a_file_is_written(
    name: str, tmp_path: Path, cache_dir: Path
) -> None:
    schema_error(f"{name}(Tensor x) -> Tensor y", tmp_path)
    assert not cache_dir.exists()
    assert {p.name for p in tmp_path.iterdir()} == {"op"}


@pytest.mark.parametrize("name", [*ODD_NAMES, "ä", "a.b"])
def test_an_odd_op_name_is_rejected_in_clear_words(name: str, tmp_path: Path) -> None:
    error = schema_error(f"{name}(Tensor x) -> Tensor y", tmp_path)
    assert "is not valid: it must be a lower-case identifier" in error


@pytest.mark.parametrize("name", ["lambda", "double"])
def test_a_keyword_is_no_op_name(name: str, tmp_path: Path) -> None:
    error = schema_error(f"{name}(Tensor x) -> Tensor y", tmp_path)
    assert f"op name '{name}' is not valid: it is a keyword of Python or C++" in error


def test_a_default_belongs_in_the_public_function(tmp_path: Path) -> None:
    error = schema_error("scaled(Tensor x, float by=2.0) -> Tensor y", tmp_path)
    assert "by has a default" in error
    assert "give them in the public function" in error


def test_an_odd_namespace_is_rejected(tmp_path: Path) -> None:
    text = """\
        from opforge import Op
        op = Op(schema="a(Tensor x) -> Tensor y", reference=abs, namespace="x;rm")
    """
    with pytest.raises(RecordError, match="namespace 'x;rm' is not valid"):
        opforge.load(write_op(tmp_path / "op", op_py=text))


def test_the_packages_own_namespace_is_refused(tmp_path: Path) -> None:
    text = """\
        from opforge import Op
        op = Op(schema="a(Tensor x) -> Tensor y", reference=abs, namespace="opforge")
    """
    with pytest.raises(RecordError, match="the namespace 'opforge' is reserved for built-in ops"):
        opforge.load(write_op(tmp_path / "op", op_py=text))


BACKWARD = """\
    import torch
    from opforge import Backward, Op

    op = Op(
        schema="mended(Tensor x) -> Tensor y",
        reference=torch.sin,
        backward={backward},
    )
"""


@pytest.mark.parametrize(
    ("backward", "said"),
    [
        (
            "lambda grad_y, z: grad_y",
            r"the backward of mended asks for 'z', which is none of: grad_<output> \(grad_y\), an "
            r"input or output \(x, y\), <input>_shape, needs_<input>, may_overwrite",
        ),
        (
            "Backward('b(Tensor grad_y, Tensor z) -> Tensor grad_x', torch.mul)",
            "the backward of mended asks for 'z'",
        ),
        (
            "Backward('b(Tensor grad_y, Tensor x) -> Tensor dx', torch.mul)",
            "b returns 'dx'; a backward's returns are named grad_<input>.*mended are x",
        ),
    ],
)
def test_a_backward_that_asks_for_an_unknown_name_is_an_error_and_can_be_mended(
    backward: str, said: str, tmp_path: Path
) -> None:
    folder = write_op(tmp_path / "op", op_py=BACKWARD.format(backward=backward))
    with pytest.raises(RecordError, match=said):
        opforge.load(folder)
    good = "lambda grad_y, x: grad_y * x.cos()"
    mended = opforge.load(write_op(folder, op_py=BACKWARD.format(backward=good), cpp=None))
    x = torch.ones(1, requires_grad=True)
    mended(x).backward()
    assert torch.allclose(x.grad, torch.ones(1).cos())


# --- the schema and the C++ -----------------------------------------------------------------------

SIGNATURE_OP = """\
    from opforge import Op

    op = Op(
        schema='''checked(Tensor x,
                          float scale,
                          int n) -> Tensor y''',
        reference=lambda x, scale, n: x * scale * n,
    )
"""
SIGNATURE_CPP = """\
    #include <opforge/host.h>
    using opforge::Tensor;
    static Tensor kernel({parameters}) {{ return x; }}
    OPFORGE_IMPL(checked, kernel)
"""


@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param("const Tensor& x, double scale", id="count"),
        pytest.param("const Tensor& x, int64_t n, double scale", id="order"),
        pytest.param("const Tensor& x, float scale, int64_t n", id="type"),
    ],
)
def test_a_kernel_that_disagrees_with_the_schema_does_not_compile(
    parameters: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", REAL_CXX)
    cpp = SIGNATURE_CPP.format(parameters=parameters)
    folder = write_op(tmp_path / "op", op_py=SIGNATURE_OP, cpp=cpp)
    with pytest.raises(BuildError) as caught:
        compile.build([planned(folder)])
    text = str(caught.value)
    assert "schema `checked(Tensor x, float scale, int n) -> Tensor y` needs a C++ function" in text
    assert "`Tensor(Tensor, double, int64_t)`, but `kernel` is another" in text
    assert f"{folder}/cpu.cpp:3: it is `static Tensor kernel({parameters})`" in text


@pytest.mark.usefixtures("untried")
def test_a_kernel_that_agrees_with_a_schema_of_several_lines_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", REAL_CXX)
    cpp = SIGNATURE_CPP.format(parameters="Tensor x, double, const int64_t&")
    folder = write_op(tmp_path / "op", op_py=SIGNATURE_OP, cpp=cpp)
    assert compile.build([planned(folder)])[0].path.is_file()


SOFTCAP_OP = """\
    import torch
    from opforge import Backward, Op

    op = Op(
        schema="softcap(Tensor x) -> Tensor y",
        reference=torch.tanh,
        backward=Backward(
            "softcap_backward(Tensor grad_y, Tensor y) -> Tensor grad_x",
            lambda grad_y, y: grad_y * (1 - y * y),
        ),
    )
"""
FORWARD_ONLY = """\
    #include <opforge/host.h>
    using opforge::Tensor;
    static Tensor forward(const Tensor& x) { return x; }
    OPFORGE_IMPL(softcap, forward)
"""


@pytest.mark.parametrize(("target", "file"), [("cpu", "cpu.cpp"), ("sim", "cuda.cu")])
def test_a_schema_without_a_kernel_is_a_build_error_that_names_it(
    target: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", REAL_CXX)
    folder = write_op(tmp_path / "op", op_py=SOFTCAP_OP, cpp=FORWARD_ONLY, cu=FORWARD_ONLY)
    with pytest.raises(BuildError) as caught:
        compile.build([planned(folder, target)])
    assert str(caught.value).startswith(
        f"softcap ({target}) registers no kernel for softcap_backward; "
        f"add OPFORGE_IMPL(softcap_backward, <function>) to {file}\nfull log: "
    )


def test_a_cuda_library_without_kernels_is_a_build_error_that_names_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", REAL_CXX)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    nvcc = stub_nvcc(tmp_path / "cuda")
    # A compiler whose object has nothing in it, as a source without OPFORGE_IMPL.
    nothing = f'{REAL_CXX} -c -x c++ /dev/null -o "$out"'
    write_stub(nvcc.path, Path(f"{nvcc.path}.version").read_text(), on_compile=nothing)
    folder = write_op(tmp_path / "op", op_py=SOFTCAP_OP, cpp=None, cu="// nothing\n")
    with pytest.raises(BuildError) as caught:
        compile.build([planned(folder, "cuda")])
    assert str(caught.value).startswith(
        "softcap (cuda) registers no kernel for softcap and softcap_backward; "
        "add OPFORGE_IMPL(softcap, <function>) and OPFORGE_IMPL(softcap_backward, <function>) "
        "to cuda.cu\nfull log: "
    )
