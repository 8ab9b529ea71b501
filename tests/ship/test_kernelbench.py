# SPDX-License-Identifier: Apache-2.0
"""`opforge export --kernelbench`: files that KernelBench accepts and that run without opforge."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import ninja
import pytest
import torch
from helpers import PATIENCE, python, write_op
from op_cases import OPS
from torch.utils import cpp_extension
from typer.testing import CliRunner

from opforge import cli
from opforge.errors import OpforgeError

RECORD = """\
    import torch
    from opforge import Op

    op = Op(
        schema="kb_affine(Tensor x, Tensor bias, float scale) -> Tensor y",
        reference=lambda x, bias, scale: x * scale + bias,
        dtypes=(torch.float32,),
        sized=lambda make, *shape: (make(*shape), make(shape[-1]), 0.5),
    )
"""
CPU = """\
#include <opforge/host.h>

#include "step.h"

namespace opforge {

Tensor affine(const Tensor& x, const Tensor& bias, double scale) {
  const Tensor y = empty(sizes(x), x);
  const int64_t n = bias.numel();
  for (int64_t i = 0; i < x.numel(); ++i)
    mutable_data<float>(y)[i] = step(data<float>(x)[i], data<float>(bias)[i % n], float(scale));
  return y;
}

OPFORGE_IMPL(kb_affine, affine)

}  // namespace opforge
"""
STEP = """\
#pragma once
// '''it's a header of the op\\'''
inline float step(float x, float bias, float scale) { return x * scale + bias; }
"""
PROBLEM = """\
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features, scale):
        super(Model, self).__init__()
        self.linear = nn.Linear(features, features)
        self.bias = nn.Parameter(torch.randn(features))
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        \"\"\"ä: what a Model does.\"\"\"
        y = self.linear(x)
        return y * self.scale + self.bias


def get_inputs():
    return [torch.rand(16, 32)]


def get_init_inputs():
    return [32, 0.25]
"""
CALL = "kb_affine(self.linear(x), self.bias, self.scale)"
# As KernelBench compares: the same seeds for both, the inputs of the problem.
COMPARE = """
    import importlib.util, sys, torch

    def imported(file):
        spec = importlib.util.spec_from_file_location(f"file{len(file)}", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    problem, answer = map(imported, sys.argv[1:])
    assert "opforge" not in sys.modules
    results = []
    for kind in (problem.Model, answer.ModelNew):
        torch.manual_seed(0)
        model = kind(*problem.get_init_inputs())
        torch.manual_seed(1)
        with torch.no_grad():
            results.append(model(*problem.get_inputs()))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
    assert results[0].numel() > 1
"""


def export(*words: object) -> str:
    """Run `opforge export --kernelbench` in this process; raises what it raises."""
    command = ["export", "--kernelbench", *map(str, words)]
    done = CliRunner().invoke(cli.app, command, catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def compare(problem: Path, answer: Path) -> None:
    environment = {
        "TORCH_EXTENSIONS_DIR": str(answer.parent / "extensions"),
        "PATH": f"{ninja.BIN_DIR}:{os.environ['PATH']}",
    }
    python(COMPARE, problem, answer, environment=environment)


@pytest.fixture(scope="module")
def affine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_op(tmp_path_factory.mktemp("ops") / "kb_affine", op_py=RECORD, cpp=CPU)
    (folder / "step.h").write_text(STEP)
    return folder


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    file = tmp_path / "problem.py"
    file.write_text(PROBLEM)
    return file


def test_an_answer_for_a_model_runs_without_opforge(
    affine: Path, problem: Path, tmp_path: Path
) -> None:
    answer = tmp_path / "answer.py"
    said = export(affine, "--model", problem, "--call", CALL, "-o", answer)
    assert "the formula of kb_affine gives what Model gives" in said
    compare(problem, answer)


def test_without_a_model_both_files_are_written(affine: Path, tmp_path: Path) -> None:
    export(affine, "-o", tmp_path / "a.py")
    scope = run(tmp_path / "a_model.py")
    x, bias = scope["get_inputs"]()
    assert torch.equal(scope["Model"]().forward(x, bias), x * 0.5 + bias)
    text = (tmp_path / "a.py").read_text()
    assert "        return kb_affine(x, bias, 0.5)\n" in text
    assert "def kb_affine(x, bias, scale=0.5):" in text
    assert not re.search(r"^\s*(import|from) opforge", text, re.MULTILINE)
    assert "-std=c++20" in text, "whatever torch compiles with by default"


def test_kernels_may_use_the_operators_of_half(tmp_path: Path) -> None:
    cu = "__half twice(__half x) { return x + x; }\nOPFORGE_IMPL(kb_affine, affine)\n"
    folder = write_op(tmp_path / "kb_affine", op_py=RECORD, cu=cu)
    export(folder, "-o", tmp_path / "a.py")
    assert "-U__CUDA_NO_HALF_OPERATORS__" in (tmp_path / "a.py").read_text()


def run(file: Path) -> dict[str, Any]:
    scope: dict[str, Any] = {}
    exec(file.read_text(), scope)
    return scope


def test_arguments_are_found_by_name(affine: Path, problem: Path, tmp_path: Path) -> None:
    text = PROBLEM.replace("y = self.linear(x)", "y = x")
    problem.write_text(text)
    export(affine, "--model", problem, "-o", tmp_path / "a.py")
    answer = (tmp_path / "a.py").read_text()
    assert "return kb_affine(x=x, bias=self.bias, scale=self.scale)" in answer
    assert "super(ModelNew, self).__init__()" in answer
    assert '"""ä: what a Model does."""' in answer


@pytest.mark.parametrize(
    ("old", "new", "words", "said"),
    [
        ("", "", [], "Model computes something else than kb_affine: .* up to .*--call"),
        ("self.bias", "self.shift", [], "Model has no 'bias'; .*--call 'kb_affine.x, …"),
        ("", "", ["--call", "z.sum()"], r"ModelNew of .* fails: NameError: name 'z'"),
        ("", "", ["--call", "x.sum()"], r"Model returns shapes \[\(16, 32\)\].*gives \[\(\)\]"),
        ("", "", ["--call", "x ="], "--call 'x =' is no Python expression"),
        ("class Model(", "class Other(", [], "no problem of KernelBench: it has no class Model"),
        ("def get_inputs", "def inputs", [], r"it has no get_inputs\(\)"),
        ("[32, 0.25]", "[32]", [], "cannot be made: TypeError"),
        ("import torch\n", "import torch, nowhere\n", [], "cannot be run: ModuleNotFoundError"),
        ("def forward", "def", [], "is not Python: line 12"),
    ],
)
def test_a_problem_that_the_op_does_not_answer(
    old: str, new: str, words: list[str], said: str, affine: Path, problem: Path, tmp_path: Path
) -> None:
    problem.write_text(PROBLEM.replace(old, new) if old else PROBLEM)
    with pytest.raises(OpforgeError, match=said):
        export(affine, "--model", problem, "-o", tmp_path / "a.py", *words)
    assert [p.name for p in tmp_path.iterdir()] == ["problem.py"]


def test_ops_that_have_no_kernel_of_their_own(tmp_path: Path) -> None:
    with pytest.raises(OpforgeError, match="linear_cross_entropy is composed of other ops"):
        export("linear_cross_entropy", "-o", tmp_path / "a.py")
    formula = write_op(tmp_path / "kb_formula", name="kb_formula", cpp=None)
    with pytest.raises(OpforgeError, match="kb_formula has no source for cpu or cuda"):
        export(formula, "-o", tmp_path / "a.py")
    record = (
        RECORD.replace("kb_affine", "kb_foreign")
        .replace("import Op", "import *")
        .replace(
            "sized=", 'build=Build(include=[PackageHeaders("torch", "torch/include")]), sized='
        )
    )
    record = record.replace("import *", "import Build, Op, PackageHeaders")
    foreign = write_op(tmp_path / "kb_foreign", op_py=record)
    with pytest.raises(OpforgeError, match=r"kb_foreign includes headers of .* torch, which"):
        export(foreign, "-o", tmp_path / "a.py")
    assert not list(tmp_path.glob("*.py"))


def test_two_headers_of_one_name_do_not_fit_into_a_file(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "step.h").write_text("#pragma once\n")
    record = RECORD.replace("import Op", "import Build, Op")
    record = record.replace("sized=", 'build=Build(include=["../shared"]), sized=')
    cpp = '#include "../shared/step.h"\n' + CPU
    folder = write_op(tmp_path / "kb_affine", op_py=record, cpp=cpp)
    (folder / "step.h").write_text(STEP)
    with pytest.raises(OpforgeError, match=r"kb_affine includes .*/step.h, which one folder of"):
        export(folder, "-o", tmp_path / "a.py")


def test_files_are_replaced_by_force_alone(affine: Path, tmp_path: Path) -> None:
    (tmp_path / "a_model.py").write_text("mine")
    with pytest.raises(OpforgeError, match=r"a_model.py exists; .*--force"):
        export(affine, "-o", tmp_path / "a.py")
    assert not (tmp_path / "a.py").exists()
    export(affine, "-o", tmp_path / "a.py", "--force")
    assert "class Model(" in (tmp_path / "a_model.py").read_text()


def test_a_model_in_another_encoding_is_refused(affine: Path, tmp_path: Path) -> None:
    (tmp_path / "problem.py").write_bytes(b"# \xe4\n")
    with pytest.raises(OpforgeError, match=r"problem.py is not UTF-8: .* 0xe4"):
        export(affine, "--model", tmp_path / "problem.py", "-o", tmp_path / "a.py")


def test_a_format_must_be_named() -> None:
    for formats in [], ["--kernelbench", "--deepspeed"]:
        with pytest.raises(OpforgeError, match="--kernelbench or --deepspeed, one of them"):
            CliRunner().invoke(cli.app, ["export", "relu", *formats], catch_exceptions=False)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [n for n in OPS if n != "linear_cross_entropy"])
def test_every_op_becomes_a_problem_and_an_answer(name: str, tmp_path: Path) -> None:
    assert "gives what Model gives" in export(name, "-o", tmp_path / "a.py")


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["rms_norm", "scale_bias_relu"])
def test_answers_with_built_in_kernels(name: str, tmp_path: Path) -> None:
    export(name, "-o", tmp_path / "a.py")
    compare(tmp_path / "a_model.py", tmp_path / "a.py")


@pytest.mark.nightly
@pytest.mark.skipif(not shutil.which("nvcc"), reason="needs nvcc")
def test_nvcc_compiles_an_answer_as_torch_would(tmp_path: Path) -> None:
    export("scale_bias_relu", "-o", tmp_path / "a.py")
    text = (tmp_path / "a.py").read_text()
    scope: dict[str, Any] = {}
    exec(text[text.index("_NAME = ") : text.index("def compile_kernels(")], scope)
    for name, source in scope["_FILES"].items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    build = scope["_BUILDS"]["cuda"]
    (source,) = (s for s in build["sources"] if s.endswith(".cu"))
    flags = [*cpp_extension.COMMON_NVCC_FLAGS, *build["common"], *build["flags"]]
    flags += ["-gencode=arch=compute_90,code=sm_90", f"-I{tmp_path}"]
    flags += [f"-I{folder}" for folder in cpp_extension.include_paths()]
    command = ["nvcc", *flags, "-c", str(tmp_path / source), "-o", str(tmp_path / "object.o")]
    subprocess.run(command, check=True, timeout=PATIENCE)
