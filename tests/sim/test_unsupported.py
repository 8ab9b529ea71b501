# SPDX-License-Identifier: Apache-2.0
"""What the simulator does not have, it says so, with the line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import write_op

import opforge
from opforge import sim
from opforge.build import unsupported
from opforge.errors import BuildError, NotSimulated, RecordError

pytestmark = pytest.mark.sim

# What unsupported.py knows, as it is met in kernels.
CONSTRUCTS = [
    ("wgmma", '"wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "'),
    ("tensor-core instructions", "nvcuda::wmma::fragment<nvcuda::wmma::matrix_a> a;"),
    ("tensor-core instructions", '"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "'),
    ("tensor-core instructions", '"tcgen05.mma.cta_group::1.kind::f16 "'),
    ("CUTLASS", "#include <cutlass/gemm/device/gemm.h>"),
    ("CUTLASS", "#  include <cute/tensor.hpp>"),
    ("CUTLASS", '#include "cute/tensor.hpp"'),
    ("<<<…>>>", "kernel<<<1, 32, 0, stream>>>(x);"),
    ("a bare __shared__", "__shared__ float tile[32];"),
    ("a bare __shared__", "extern __shared__ char bytes[];"),
    ("asynchronous copies", 'asm volatile("cp.async.ca.shared.global [%0], [%1], 4;");'),
    ("asynchronous copies", "__pipeline_memcpy_async(&a, &b, 16);"),
    ("mbarriers", 'asm volatile("mbarrier.init.shared.b64 [%0], 1;");'),
    ("clusters", "__global__ void __cluster_dims__(2, 1, 1) kernel() {}"),
    ("clusters", "auto cluster = cg::this_cluster(); cluster_group other = cluster;"),
    ("inline PTX", 'asm("mov.u32 %0, %laneid;" : "=r"(lane));'),
    ("inline PTX", 'asm volatile ("membar.gl;");'),
    ("inline PTX", '__asm__ __volatile__("membar.gl;");'),
    ("cooperative groups", "#include <cooperative_groups.h>"),
    ("cooperative groups", "namespace cg = cooperative_groups;"),
    ("a CUDA library", "#include <cub/block/block_reduce.cuh>"),
    ("a CUDA library", "#include <cuda/std/array>"),
    ("a CUDA library", "#include <curand_kernel.h>"),
    ("a CUDA library", "#include <cublas_v2.h>"),
    ("a CUDA library", "#include <thrust/sort.h>"),
    ("tensor-core instructions", "#include <mma.h>"),
    ("CUDA's half types", "#include <cuda_fp16.h>"),
    ("inline PTX", 'asm __volatile__("membar.gl;");'),
    ("an approximate function", "float y = __expf(x);"),
    ("textures", "texture<float, 2> image;"),
    ("textures", "float v = tex2D<float>(image, u, v);"),
]  # fmt: skip


def test_every_construct_is_tried() -> None:
    assert {name for name, _ in CONSTRUCTS} == {name for _, name, _ in unsupported._CONSTRUCTS}


@pytest.mark.parametrize("file", ["cuda.cu", "kernel.cuh", "more.h"])
@pytest.mark.parametrize(("name", "line"), CONSTRUCTS, ids=[line for _, line in CONSTRUCTS])
def test_unsupported_construct(tmp_path: Path, name: str, line: str, file: str) -> None:
    folder = write_op(tmp_path / "op", name="sim_unsupported", cpp=None, cu='#include "kernel.cuh"')
    (folder / file).write_text(f"// a kernel\n/* <<<\n __shared__ */\n\n{line}\n<<<\n")
    with pytest.raises(NotSimulated) as failure:
        sim.run(str(folder), torch.ones(3))
    assert f"uses {name} ({folder / file}:5); " in str(failure.value)


def test_a_comment_uses_nothing(tmp_path: Path) -> None:
    for k, (_, line) in enumerate(CONSTRUCTS):
        folder = tmp_path / str(k)
        folder.mkdir()
        (folder / "cuda.cu").write_text(f"int a;  // {line}\n/* {line}\n * {line}\n */ int b;\n")
        unsupported.check(folder)


@pytest.mark.parametrize(
    ("guard", "compiled"),
    [
        ("#if defined(OPFORGE_SIM)", True),
        ("#if !defined(OPFORGE_SIM)", False),
        ("#ifndef OPFORGE_SIM", False),
        ("#ifdef __CUDA_ARCH__", False),
        ("#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900", False),
        ("#if __CUDA_ARCH__ >= 900", False),
        ("#if 0", False),
        ("#if OPFORGE_SIM\nint a;\n#else", False),
        ("#if SOMETHING_ELSE", True),
        ("#if defined(OPFORGE_SIM)\nint a;\n#else", False),
        ("#if !defined(OPFORGE_SIM)\nint a;\n#elif SOMETHING", True),
        ("#if defined(OPFORGE_SIM)\nint a;\n#elif SOMETHING", False),
        ("#ifndef OPFORGE_SIM\n#if SOMETHING\n#endif", False),
    ],
)
def test_what_the_preprocessor_leaves_out_does_not_count(
    tmp_path: Path, guard: str, compiled: bool
) -> None:
    (tmp_path / "cuda.cu").write_text(f'{guard}\nasm("exit;");\n#endif\nint b;\n')
    if not compiled:
        unsupported.check(tmp_path)
        return
    with pytest.raises(NotSimulated, match="inline PTX"):
        unsupported.check(tmp_path)


PTX_TWIN = """\
#include <opforge/host.h>

using opforge::Tensor;

__global__ void twice(const float* x, float* y) {
#if defined(OPFORGE_SIM)
  y[threadIdx.x] = x[threadIdx.x] + x[threadIdx.x];
#else
  asm volatile("add.f32 %0, %1, %1;" : "=f"(y[threadIdx.x]) : "f"(x[threadIdx.x]));
#endif
}
static Tensor run(const Tensor& x) {
  Tensor y = opforge::empty(opforge::sizes(x), x);
  opforge::launch(twice, {1, unsigned(x.numel()), opforge::current_stream(x)},
                  opforge::data<float>(x), opforge::mutable_data<float>(y));
  return y;
}
OPFORGE_IMPL(sim_twin, run)
"""


def test_inline_ptx_with_a_plain_twin(tmp_path: Path) -> None:
    function = opforge.load(write_op(tmp_path / "op", name="sim_twin", cpp=None, cu=PTX_TWIN))
    assert sim.run(function, torch.tensor([1.0, 2.5])).tolist() == [2, 5]


def test_an_unknown_intrinsic(tmp_path: Path) -> None:
    source = "#include <cuda_runtime.h>\n\n__global__ void kernel() { __nanosleep(100); }\n"
    folder = write_op(tmp_path / "op", name="sim_unknown", cpp=None, cu=source)
    with pytest.raises(BuildError, match=r"cuda\.cu:3:.*__nanosleep"):
        sim.run(str(folder), torch.ones(3))


def test_an_op_without_cuda_source(tmp_path: Path) -> None:
    folder = write_op(tmp_path / "op", name="sim_no_source", cpp=None)
    with pytest.raises(RecordError, match=r"sim_no_source has no .*source \(\*\.cu\)"):
        sim.run(str(folder), torch.ones(3))
