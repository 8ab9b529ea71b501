# SPDX-License-Identifier: Apache-2.0
"""Ops from formulas and strings."""

from __future__ import annotations

import inspect
import os
import re
import time
import traceback
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import opforge
from opforge import sim
from opforge.build import origins
from opforge.build.cache_cli import cache_app
from opforge.errors import BuildError, RecordError, SimulationError
from opforge.interactive import elementwise
from opforge.op import FLOATS, Backward
from opforge.registration.schema import parse

SOFTCAP = "softcap(Tensor x, float cap) -> Tensor y"


def softcap_formula(x, cap):
    return cap * torch.tanh(x / cap)


def here() -> int:
    """The line of the caller."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


def test_a_formula_alone_is_an_op():
    softcap = opforge.inline(SOFTCAP, lambda x, cap: cap * torch.tanh(x / cap))
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.equal(softcap(x, cap=2.0), softcap_formula(x, 2.0))
    assert torch.autograd.gradcheck(lambda t: softcap(t, 2.0), x)
    compiled = torch.compile(lambda t: softcap(t, 2.0) + 1, fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(x), softcap_formula(x, 2.0) + 1)


def test_it_decorates_its_reference():
    @opforge.inline("twice(Tensor x) -> Tensor y")
    def twice(x):
        """Two times x."""
        return x + x

    assert twice(torch.ones(2)).tolist() == [2, 2]
    assert twice.__doc__ == "Two times x."


STATEMENTS = """
    // 0.5 is a number of the dtype
    real t = x > 0.5 ? x : bias;
    if (minus) {
      y = -(t * cap + n);
    } else {
      y = t * cap + n;
    }
"""


def mixed_formula(x, bias, cap, n, minus):
    y = torch.where(x > 0.5, x, bias) * cap + n
    return -y if minus else y


@pytest.fixture(scope="module")
def mixed():
    schema = "mixed(Tensor x, Tensor bias, float cap, int n, bool minus) -> Tensor y"
    return opforge.inline(schema, mixed_formula, elementwise=STATEMENTS)


@pytest.mark.parametrize("device", ["cpu", "sim"], indirect=True)
def test_one_formula_serves_both_kernels_all_dtypes_and_all_kinds_of_numbers(
    mixed, device, untried
):
    for dtype in FLOATS:
        for x in (torch.rand(65, 33, dtype=dtype), torch.rand(33, 12, dtype=dtype).t()):
            bias = torch.rand(33, dtype=dtype)
            for minus in (False, True):
                expected = mixed_formula(x.double(), bias.double(), 1.5, 3, minus)
                torch.testing.assert_close(mixed(x, bias, 1.5, 3, minus), expected.to(dtype))
    assert mixed.pointwise


def test_tensors_of_two_dtypes_or_shapes_are_refused(mixed, monkeypatch, cache_dir):
    monkeypatch.setenv("OPFORGE_JIT", "0")
    x, bias = torch.rand(31, 17), torch.rand(17)
    with pytest.raises(TypeError, match=r"x is torch.float32 but bias is torch.float64; convert"):
        mixed(x, bias.double(), 1.5, 3, False)
    with pytest.raises(ValueError, match=r"bias has shape \(4,\): they do not broadcast"):
        mixed(x, torch.rand(4), 1.5, 3, False)


def test_numbers_get_the_type_of_the_dtype():
    text = "y = 0.5 * x + 1e-3 * .25 - 2.f * x1.5 /* 0.5 */ + 7 + 0x1.8p3"
    (sources, _) = elementwise.sources([(parse("f(Tensor x) -> Tensor y"), text)])
    typed = "number<real>(0.5) * x + number<real>(1e-3) * number<real>(.25) - 2.f * x1.5"
    assert re.search(re.escape(typed) + r" +\+ 7 \+ 0x1\.8p3\n", sources["formula.h"])


CPU = r"""
using opforge::Tensor;

static Tensor thrice(const Tensor& x) {
  OPFORGE_CHECK(x.is_contiguous(), "thrice: x must be contiguous");
  const Tensor y = opforge::empty(opforge::sizes(x), x);
  for (int64_t i = 0; i < x.numel(); ++i)
    opforge::mutable_data<float>(y)[i] = FACTOR * opforge::data<float>(x)[i];
  return y;
}

OPFORGE_IMPL(thrice, thrice)
"""


# --- where errors are ---


def test_a_compile_error_is_at_the_line_of_the_script(untried):
    thrice = opforge.inline("thrice(Tensor x) -> Tensor y", lambda x: x * 3, cpu=CPU)
    wrong = line_of(" = FACTOR *")
    column = CPU.splitlines()[wrong - line_of('CPU = r"""')].index("FACTOR") + 1
    with pytest.raises(BuildError) as raised:
        thrice(torch.ones(3))
    first, log = str(raised.value).splitlines()
    assert f"{__file__}:{wrong}:{column}: error" in first
    assert f"{__file__}:{wrong}" in Path(log.removeprefix("full log: ")).read_text()


def places(op, text):
    """Where the script has the lines of the formula's header that hold a text."""
    lines = (op.folder / "formula.h").read_text().splitlines()
    found = [f"{op.folder}/formula.h:{i}:5" for i, line in enumerate(lines, 1) if text in line]
    return {origins.translate(place, op.folder) for place in found}


MULTIPLIED = """
    real t = x;
    y = t * three;
"""


def test_lines_are_known_however_the_string_is_written():
    schema = "written(Tensor x, int three) -> Tensor y"

    def formula(x, three):
        return x * three

    here_op = opforge.inline(schema, formula, elementwise=MULTIPLIED)
    first = inspect.getsource(inspect.getmodule(here)).splitlines().index('MULTIPLIED = """') + 1
    assert places(here_op, "y = t * three") == {f"{__file__}:{first + 2}"}
    continued = """\
        real t = x;
        y = three * t;"""
    line = here() - 1
    assert places(opforge.inline(schema, formula, elementwise=continued), "y = three") == {
        f"{__file__}:{line}"
    }
    joined = "real t = three;\ny = x * t;"
    line = here() - 1
    assert places(opforge.inline(schema, formula, elementwise=joined), "y = x * t") == {
        f"{__file__}:{line}"
    }
    line = here() + 1
    computed = opforge.inline(schema, formula, elementwise=f"y = {'x'} * three + {0}")
    assert places(computed, "x * three + 0") == {f"{__file__}:{line}"}


RACE = """
#include <opforge/core/launch.h>

using opforge::Tensor;

__global__ void total(const float* x, float* y) {
  *y += x[threadIdx.x];
}

static Tensor run(const Tensor& x) {
  const int64_t one = 1;
  const Tensor y = opforge::empty({&one, 1}, x);
  opforge::fill_zero(y);
  opforge::launch(total, {dim3(1), dim3(64), opforge::current_stream(x)}, opforge::data<float>(x),
                  opforge::mutable_data<float>(y));
  return y;
}

OPFORGE_IMPL(racing, run)
"""


def racing():
    return opforge.inline("racing(Tensor x) -> Tensor y", lambda x: x.sum().reshape(1), cuda=RACE)


def line_of(text):
    lines = inspect.getsource(inspect.getmodule(here)).splitlines()  # type: ignore[arg-type]
    return next(i for i, line in enumerate(lines, 1) if text in line)


def test_what_nvcc_and_the_simulator_say_is_of_the_script():
    folder, line = racing().folder, line_of("*y += x[")
    in_folder = line - line_of('RACE = """') + 2  # after one line of ours
    for said, expected in {
        f"{folder}/cuda.cu({in_folder}): error: no": f"{__file__}:{line}: error: no",
        f"at cuda.cu:{in_folder}, thread 3": f"at {__file__}:{line}, thread 3",
        f"other/cuda.cu:{in_folder}": f"other/cuda.cu:{in_folder}",
        f"{folder}/cuda.cu:1000:2": f"{folder}/cuda.cu:1000:2",
    }.items():
        assert origins.translate(said, folder) == expected


@pytest.mark.sim
@pytest.mark.nightly
def test_a_fault_in_the_simulator_is_at_the_line_of_the_script():
    place = re.escape(f"{__file__}:{line_of('*y += x[')}")
    with pytest.raises(SimulationError, match=place), sim.active("race"):
        racing()(torch.ones(64))


def test_an_error_in_the_reference_keeps_its_traceback():
    line = here() + 1
    broken = opforge.inline("broken(Tensor x) -> Tensor y", lambda x: x @ x.missing)
    with pytest.raises(AttributeError) as raised:
        broken(torch.ones(2))
    last = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert (last.filename, last.lineno) == (__file__, line)


# --- again ---


def test_the_same_again_is_the_same_op_and_another_text_a_new_one(capfd):
    def make(factor):
        return opforge.inline("again(Tensor x) -> Tensor y", lambda x: x * factor)

    first, same, other = make(2), make(2), make(5)
    assert first is same
    x = torch.ones(2)
    assert (first(x).tolist(), other(x).tolist()) == ([2, 2], [5, 5])
    assert first.namespace != other.namespace
    assert capfd.readouterr() == ("", "")


def test_ops_of_the_same_kernels_are_named_alike_so_that_another_run_finds_the_library():
    def make(reference, formula="y = x + x"):
        return opforge.inline("named(Tensor x) -> Tensor y", reference, elementwise=formula)

    first, second = make(lambda x: x + x), make(lambda x: 2 * x)
    assert re.fullmatch(r"opforge_inline_[0-9a-f]{8}", first.namespace)
    assert re.fullmatch(rf"{first.namespace}_[0-9a-f]{{8}}", second.namespace)
    assert not make(lambda x: x + x, "y = 2 * x").namespace.startswith(first.namespace)


def test_a_string_that_moves_is_the_same_op():
    first = opforge.inline("moved(Tensor x) -> Tensor y", torch.sin, elementwise="y = sin(x)")

    second = opforge.inline("moved(Tensor x) -> Tensor y", torch.sin, elementwise="y = sin(x)")
    assert first is second


def test_prune_removes_what_was_not_used_for_a_month(cache_dir):
    old, new = (
        opforge.inline(f"pruned{i}(Tensor x) -> Tensor y", lambda x: x + 1).folder for i in (1, 2)
    )
    os.utime(old, times=(time.time() - 31 * 86400,) * 2)
    runner = CliRunner()
    assert runner.invoke(cache_app, ["prune"]).exit_code == 0
    assert (old.exists(), new.exists()) == (False, True)
    again = opforge.inline("pruned1(Tensor x) -> Tensor y", lambda x: x + 1)
    assert again.folder == old
    assert (old / "op.py").is_file()
    assert runner.invoke(cache_app, ["prune", "--all"]).exit_code == 0
    assert not new.exists()


# --- bad input ---


@pytest.mark.parametrize(
    ("schema", "given", "said"),
    [
        ("relu(Tensor x) -> Tensor y", {}, "relu is the name of a built-in op; choose another"),
        ("f(Tensor x -> Tensor y", {}, "cannot be parsed"),
        ("f(Tensor x) -> Tensor", {}, "needs a name"),
        ("class(Tensor x) -> Tensor y", {}, "it is a keyword"),
        (
            "f(Tensor x) -> Tensor y",
            {"cuda": "y = x"},
            r"cuda has no OPFORGE_IMPL\(f, <function>\)",
        ),
        (
            "f(Tensor x) -> Tensor y",
            {"elementwise": "y = x", "cpu": "OPFORGE_IMPL(f, f)"},
            "give either elementwise, or cuda and cpu",
        ),
        ("f(Tensor x) -> Tensor y", {"elementwise": "z = x"}, "does not assign y; write y ="),
        ("f(Tensor x) -> Tensor y", {"elementwise": "y == x"}, "does not assign y"),
        ("f(Tensor x) -> Tensor y", {"elementwise": "// y = x"}, "does not assign y"),
        ("f(Tensor x) -> (Tensor y, Tensor z)", {"elementwise": "y = x"}, "its schema returns 2"),
        ("f(Tensor x, int[] n) -> Tensor y", {"elementwise": "y = x"}, r"n, which is a int\[\]"),
        ("f(Tensor real) -> Tensor y", {"elementwise": "y = real"}, "rename the argument"),
        ("f(Tensor x) -> Tensor y", {"elementwise": {"g": "y = x"}}, 'elementwise={"f": "…"}'),
        ("f(Tensor x) -> Tensor y", {"cpu": b"y = x"}, "cpu must be a string of C\\+\\+, got b'y"),
        ("f(Tensor x) -> Tensor y", {"case": []}, "no field 'case'; .*did you mean 'cases'"),
        ("f(Tensor x) -> Tensor y", {"namespace": "mine"}, "no field 'namespace'"),
    ],
)
def test_what_cannot_be_an_op_is_refused_in_a_line(schema, given, said, cache_dir):
    with pytest.raises(RecordError, match=said) as raised:
        opforge.inline(schema, lambda x: x, **given)
    assert "\n" not in str(raised.value)
    assert not cache_dir.exists() or not list(cache_dir.glob("inline/*"))


def test_a_missing_reference_is_named():
    with pytest.raises(RecordError, match="has no reference; pass reference="):
        opforge.inline("f(Tensor x) -> Tensor y", elementwise="y = x")(torch.ones(3))


def test_without_a_compiler_the_reference_runs_and_says_so(cache_dir, monkeypatch):
    monkeypatch.setenv("CXX", "/no/such/compiler")
    op = opforge.inline("lonely(Tensor x) -> Tensor y", torch.cos, elementwise="y = cos(x)")
    with pytest.warns(UserWarning, match="lonely runs through its PyTorch reference on the CPU"):
        assert torch.equal(op(torch.ones(3)), torch.ones(3).cos())


def test_a_backward_of_its_own_has_a_formula_of_its_own(untried):
    op = opforge.inline(
        "cube(Tensor x) -> Tensor y",
        lambda x: x * x * x,
        backward=Backward(
            "cube_backward(Tensor grad_y, Tensor x) -> Tensor grad_x",
            lambda grad_y, x: 3 * grad_y * x * x,
        ),
        elementwise={"cube": "y = x * x * x", "cube_backward": "grad_x = 3.0 * grad_y * x * x"},
    )
    x = torch.randn(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(op, x)
    assert torch.autograd.gradgradcheck(op, x)
