# SPDX-License-Identifier: Apache-2.0
"""Ops in parts: libraries by dtype and on demand, built and loaded when a call needs them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import CPU_CPP, planned, python, write_op

import opforge
from opforge import discover
from opforge.build import cache, load
from opforge.build.plan import plan_all
from opforge.errors import BuildError, RecordError

pytestmark = pytest.mark.usefixtures("cache_dir", "untried")

RECORD = """\
    import torch
    from opforge import Build, Op

    op = Op(
        schema="{name}(Tensor x) -> Tensor y",
        reference=lambda x: 2 * x,
        dtypes=({dtypes}),
        build=Build({build}),
    )
"""
BY_DTYPE = """\
#include <opforge/host.h>

namespace opforge {{

Tensor twice(const Tensor& x) {{
  OPFORGE_CHECK(x.is_contiguous(), "x must be contiguous");
  const Tensor y = empty(sizes(x), x);
  dispatch(dtype_of(x), [&]<class T>(Type<T>) {{
    {check}
    for (int64_t i = 0; i < x.numel(); ++i) mutable_data<T>(y)[i] = {factor} * data<T>(x)[i];
  }});
  return y;
}}

OPFORGE_IMPL({name}, twice)

}}  // namespace opforge
"""
FLOATS = "torch.float32, torch.float64"


def by_dtype(folder: Path, name: str, check: str = "", factor: str = "2", dtypes: str = FLOATS):
    """An op whose CPU kernels are compiled by dtype."""
    record = RECORD.format(name=name, dtypes=dtypes, build='by_dtype=["cpu"]')
    cpp = BY_DTYPE.format(name=name, check=check, factor=factor)
    return write_op(folder, op_py=record, cpp=cpp)


def parts_in_cache() -> list[str]:
    return sorted(library.manifest["part"] for library in cache.entries())


def test_a_call_builds_and_loads_its_own_dtype_only(tmp_path, capfd):
    function = opforge.load(by_dtype(tmp_path / "op", "by_dtype_lazy"))
    assert function(torch.ones(3)).tolist() == [2, 2, 2]
    assert parts_in_cache() == ["", "f32"]
    assert "building by_dtype_lazy (cpu), by_dtype_lazy (cpu f32) …" in capfd.readouterr().err
    assert function(torch.ones(3, dtype=torch.float64)).tolist() == [2, 2, 2]
    assert parts_in_cache() == ["", "f32", "f64"]
    assert "building by_dtype_lazy (cpu f64) …" in capfd.readouterr().err
    assert function(torch.ones(3)).dtype == torch.float32


@pytest.mark.nightly
def test_gradients_and_compiled_code_find_their_part(tmp_path):
    function = opforge.load(by_dtype(tmp_path / "op", "by_dtype_grad"))
    function(torch.ones(1))
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    torch.compile(function, backend="aot_eager")(x).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]
    assert parts_in_cache() == ["", "f32", "f64"]


@pytest.mark.nightly
def test_another_process_loads_what_is_built(tmp_path):
    folder = by_dtype(tmp_path / "op", "by_dtype_again")
    load.find(discover.load_folder(folder).op, "cpu")
    code = """
        import sys, torch, opforge
        function = opforge.load(sys.argv[1])
        for dtype in (torch.float32, torch.float64):
            assert function(torch.ones(2, dtype=dtype)).tolist() == [2, 2]
    """
    done = python(code, folder, environment={"OPFORGE_JIT": "0"})
    assert "building" not in done.stderr


@pytest.mark.nightly
def test_a_dtype_the_op_does_not_take(tmp_path):
    function = opforge.load(by_dtype(tmp_path / "op", "by_dtype_refused"))
    function(torch.ones(1))
    with pytest.raises(TypeError, match=r"x has dtype torch.int64; supported: float32, float64"):
        function(torch.ones(3, dtype=torch.int64))
    with pytest.raises(RuntimeError, match="unsupported dtype"):
        torch.ops.opforge_user.by_dtype_refused(torch.ones(3, dtype=torch.int64))
    assert parts_in_cache() == ["", "f32"]


@pytest.mark.nightly
def test_a_part_that_does_not_compile_names_itself_and_frees_the_arguments(tmp_path):
    check = 'static_assert(sizeof(T) == 4, "not in double");'
    function = opforge.load(by_dtype(tmp_path / "op", "by_dtype_broken", check))
    assert function(torch.ones(3)).tolist() == [2, 2, 2]
    x = torch.ones(3, dtype=torch.float64)
    users = x._use_count()
    for _ in range(3):
        said = r"building by_dtype_broken \(cpu f64\) failed: .*not in double"
        with pytest.raises(RuntimeError, match=said):
            function(x)
    assert x._use_count() == users
    other = opforge.load(by_dtype(tmp_path / "op2", "by_dtype_broken_too", check))
    with pytest.raises(BuildError, match="not in double"):
        other(x)


def test_a_part_of_changed_sources_is_refused(tmp_path):
    folder = by_dtype(tmp_path / "op", "by_dtype_changed")
    function = opforge.load(folder)
    assert function(torch.ones(3)).tolist() == [2, 2, 2]
    (folder / "cpu.cpp").write_text((folder / "cpu.cpp").read_text() + "// changed\n")
    with pytest.raises(RuntimeError, match="sources of by_dtype_changed have changed since"):
        function(torch.ones(3, dtype=torch.float64))
    assert function(torch.ones(3)).tolist() == [2, 2, 2]


@pytest.mark.nightly
def test_a_dtype_that_is_missing_leaves_the_others(tmp_path, monkeypatch):
    folder = by_dtype(tmp_path / "op", "by_dtype_missing")
    op = discover.load_folder(folder).op
    load.find(op, "cpu", torch.float32)
    monkeypatch.setenv("OPFORGE_JIT", "0")
    with pytest.warns(UserWarning, match=r"by_dtype_missing-cpu-f64.so is missing"):
        assert op(torch.ones(3, dtype=torch.float64)).tolist() == [2, 2, 2]  # the reference
    op(torch.ones(3))
    assert load.loaded_path(op, "cpu").is_file()


@pytest.mark.nightly
def test_dispatch_on_another_tensor_names_the_remedy(tmp_path):
    record = """\
        import torch
        from opforge import Build, Op

        op = Op(
            schema="by_dtype_mixed(Tensor x, Tensor w) -> Tensor y",
            reference=lambda x, w: 2 * x,
            dtypes=(torch.float32, torch.float64),
            build=Build(by_dtype=["cpu"]),
        )
    """
    cpp = BY_DTYPE.format(name="by_dtype_mixed", check="", factor="2")
    cpp = cpp.replace("(const Tensor& x)", "(const Tensor& x, const Tensor& w)")
    cpp = cpp.replace("dispatch(dtype_of(x)", "dispatch(dtype_of(w)")
    function = opforge.load(write_op(tmp_path / "op", op_py=record, cpp=cpp))
    w = torch.ones(3, dtype=torch.float64)
    with pytest.raises(RuntimeError, match=r"dispatch\(\) got another dtype than that of"):
        function(torch.ones(3), w)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        ('by_dtype=["gpu"]', "Build has by_dtype for 'gpu'; only cpu and cuda are compiled by"),
        ('on_demand=["units/*.cpp"]', r"has no source units/\*.cpp to compile on demand"),
        (
            'on_demand=["units/*"]',
            r"Build has 'units/\*' for on_demand; it takes patterns of",
        ),
        ('on_demand=["cpu.cpp"]', r"cpu.cpp is compiled on demand, but has no line OPFORGE_"),
    ],
)
def test_records_that_cannot_be(tmp_path, build, said):
    record = RECORD.format(name="no_parts", dtypes=FLOATS, build=build)
    folder = write_op(tmp_path / "op", op_py=record, cpp=CPU_CPP.format(name="no_parts", factor=2))
    with pytest.raises(RecordError, match=said):
        planned(folder)


def test_dtypes_that_have_no_part(tmp_path):
    folder = by_dtype(tmp_path / "op", "by_int", dtypes="torch.float32, torch.int32")
    with pytest.raises(
        RecordError, match=r"asks for a library per dtype, but torch.int32 cannot have"
    ):
        planned(folder)


def test_a_first_tensor_whose_dtype_is_another(tmp_path):
    record = """\
        import torch
        from opforge import Build, Op

        op = Op(
            schema="take(Tensor index, Tensor x) -> Tensor y",
            reference=lambda index, x: x[index],
            own_dtypes={"index": (torch.int64,)},
            build=Build(by_dtype=["cpu"]),
        )
    """
    folder = write_op(tmp_path / "op", op_py=record, cpp="// nothing\n")
    with pytest.raises(RecordError, match="but take begins with index, whose dtype may differ"):
        planned(folder)


# --- units ----------------------------------------------------------------------------------------

HOST = """\
#include <opforge/host.h>

namespace opforge {

Tensor twice(const Tensor& x) {
  static Unit<double(const double&, int64_t)> small("small"), large("large");
  const Tensor y = empty(sizes(x), x);
  auto& unit = x.numel() < 10 ? small : large;
  for (int64_t i = 0; i < x.numel(); ++i)
    mutable_data<double>(y)[i] = unit(data<double>(x)[i], 2);
  return y;
}

OPFORGE_IMPL(in_units, twice)

}  // namespace opforge
"""
UNIT = """\
#include <opforge/host.h>

static double times(const double& x, int64_t factor) { return x * factor; }

OPFORGE_UNIT(NAME, times)
"""


def in_units(folder: Path, large: str = UNIT) -> Path:
    """An op with two units that are compiled on demand."""
    record = RECORD.format(
        name="in_units", dtypes="torch.float64,", build='on_demand=["units/*.cpp"]'
    )
    write_op(folder, op_py=record, cpp=HOST)
    (folder / "units").mkdir()
    for name, text in (("small", UNIT), ("large", large)):
        (folder / "units" / f"{name}.cpp").write_text(text.replace("NAME", name))
    return folder


def test_a_unit_is_built_when_it_is_first_called(tmp_path):
    function = opforge.load(in_units(tmp_path / "op"))
    assert function(torch.ones(3, dtype=torch.float64)).tolist() == [2, 2, 2]
    assert parts_in_cache() == ["", "units-small"]
    assert function(torch.ones(20, dtype=torch.float64)).sum() == 40
    assert parts_in_cache() == ["", "units-large", "units-small"]


@pytest.mark.nightly
def test_a_unit_called_as_something_else_is_an_error(tmp_path):
    other = UNIT.replace("const double& x", "double x")
    function = opforge.load(in_units(tmp_path / "op", large=other))
    assert function(torch.ones(3, dtype=torch.float64)).tolist() == [2, 2, 2]
    with pytest.raises(RuntimeError, match=r"the unit large is called as .*const double&.* but is"):
        function(torch.ones(20, dtype=torch.float64))


@pytest.mark.nightly
def test_a_unit_that_no_source_has(tmp_path):
    folder = in_units(tmp_path / "op")
    (folder / "cpu.cpp").write_text(HOST.replace('small("small")', 'small("tiny")'))
    function = opforge.load(folder)
    with pytest.raises(RuntimeError, match=r"compiled on demand has OPFORGE_UNIT\(tiny\)"):
        function(torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("make", [pytest.param("dtypes", marks=pytest.mark.nightly), "units"])
@pytest.mark.nightly
def test_without_python_parts_lie_beside_each_other(tmp_path, make):
    """What a C++ program does: it loads the base, which looks for the others in its own folder."""
    if make == "dtypes":
        folder, name = by_dtype(tmp_path / "op", "beside"), "beside"
    else:
        folder, name = in_units(tmp_path / "op"), "in_units"
    out = tmp_path / "out"
    command = "from opforge.cli import main; import sys; sys.argv[0] = 'opforge'; main()"
    python(command, "build", folder, "--cpu", "--out", out)
    code = """
        import sys, torch
        for name in (sys.argv[2], sys.argv[2] + ".below_autograd"):
            torch.library.define(f"opforge_user::{name}", "(Tensor x) -> Tensor y")
        torch.ops.load_library(f"{sys.argv[1]}/{sys.argv[2]}-cpu.so")
        op = getattr(torch.ops.opforge_user, sys.argv[2])
        assert op(torch.ones(3, dtype=torch.float64)).tolist() == [2, 2, 2]
    """
    python(code, out, name)
    for part in out.glob("*-f64.*"):
        part.unlink()
    if make == "dtypes":
        with pytest.raises(AssertionError, match=r"beside-cpu-f64.so cannot be loaded"):
            python(code, out, name)


def test_a_key_per_part(tmp_path):
    op = discover.load_folder(by_dtype(tmp_path / "op", "by_dtype_keys")).op
    plans = {p.part: p for p in plan_all(op, "cpu")}
    assert list(plans) == ["", "f32", "f64"]
    assert len({p.key for p in plans.values()}) == 3
    assert plans[""].sources == ()
    assert "-DOPFORGE_DTYPE=f64" in plans["f64"].compile
    assert plans["f64"].library == "by_dtype_keys-cpu-f64.so"
