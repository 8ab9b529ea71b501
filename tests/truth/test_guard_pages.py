# SPDX-License-Identifier: Apache-2.0
"""Guard pages: what accesses memory beside tensors, or changes what it is given, is named.

The faults of whole ops are in wrong_ops; here is what they do not show.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import PATIENCE, write_op
from sim_kernels import line_of, write_kernels

from opforge import sim, testing
from opforge.check import results
from opforge.errors import SimulationError
from opforge.truth import guard

WRONG_OPS = Path(__file__).parents[1] / "wrong_ops"


def said(op: Path, place: str = "cpu") -> str:
    """What the row says of an op that it rejects."""
    with pytest.raises(testing.CheckFailed) as failure:
        testing.check(op, on=[place], only=["guard-pages"])
    (result,) = failure.value.report.ops[0].results
    assert result.outcome == results.FAILED
    return result.text


def ended(program: str, **environment: str) -> str:
    """The last words of a process that ends by a fault."""
    setup = "import ctypes, torch\nfrom opforge.truth import guard\n"
    done = subprocess.run(
        [sys.executable, "-c", setup + program],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, **environment},
    )
    assert done.returncode == 1
    assert guard.SAYS in done.stderr
    return done.stderr.partition(guard.SAYS)[2]


# --- where tensors lie ----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1,), (33,), (64,), (5, 7), (1025,)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.complex128])
def test_an_argument_ends_or_begins_at_a_page_to_the_byte(shape, dtype):
    x = torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)
    at_end = guard.against_page(x, "end", "x")
    assert (at_end.data_ptr() + at_end.nbytes) % 4096 == 0
    at_start = guard.against_page(x, "start", "x")
    assert at_start.data_ptr() % 4096 == 0
    assert torch.equal(at_end, x)
    assert torch.equal(at_start, x)


def test_strides_are_kept():
    x = torch.arange(60.0).reshape(3, 4, 5)
    for view in (x[:, 1:3, ::2], x.permute(2, 0, 1), x[:, :1].expand(3, 4, 5), x[1, 1, 1]):
        moved = guard.against_page(view, "end", "x")
        assert torch.equal(moved, view)
        assert moved.stride() == view.stride()
    assert guard.against_page(x[:0], "end", "x").shape == (0, 4, 5)


def test_new_tensors_lie_at_a_page_aligned_as_torch_promises_and_hold_no_zeros():
    with guard.pages("end"):
        y = torch.empty(100)
    assert y.data_ptr() % 64 == 0
    assert 0 <= -(y.data_ptr() + y.nbytes) % 4096 < 64
    assert y.isnan().all()
    with guard.pages("start"):
        assert torch.empty(100).data_ptr() % 4096 == 0
    assert torch.zeros(100).add_(1).sum() == 100


def test_a_page_away_is_found_as_well():
    x = "guard.against_page(torch.ones(8), 'end', 'x')"
    words = ended(f"x = {x}\nctypes.string_at(x.data_ptr() + 32 + 40_000, 1)")
    assert "reads 10001 elements past the end of x, which spans 8 elements of 4 bytes" in words


# --- what does not fault --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("side", "at", "words"),
    [
        ("end", 400, "the op wrote 1 byte past the end of 400 bytes that the op allocated"),
        ("end", 447, "the op wrote 48 bytes past the end of 400 bytes that the op allocated"),
        ("end", -1, "the op wrote 1 byte before the start of 400 bytes that the op allocated"),
        ("start", 403, "the op wrote 4 bytes past the end of 400 bytes that the op allocated"),
    ],
)
@pytest.mark.parametrize("freed", [False, True])
def test_a_write_into_the_rest_of_a_page_is_found_when_the_call_is_over(side, at, words, freed):
    def write() -> None:
        with guard.pages(side):
            y = torch.empty(100)
            ctypes.memset(y.data_ptr() + at, 0, 1)
            if freed:
                del y

    with pytest.raises(guard.OutOfBounds) as found:
        write()
    assert str(found.value) == words
    with guard.pages(side):  # said once
        torch.empty(100)


def test_an_error_inside_is_told_first_and_what_was_found_not_of_the_next_call():
    def write_and_fail() -> None:
        with guard.pages("end"):
            y = torch.empty(100)
            ctypes.memset(y.data_ptr() + 400, 0, 1)
            raise KeyError

    with pytest.raises(KeyError):
        write_and_fail()
    with guard.pages("end"):
        torch.empty(100)


# --- what must not be changed ---------------------------------------------------------------------


@pytest.mark.nightly
def test_a_backward_that_changes_the_gradient_for_good_is_named():
    text = said(WRONG_OPS / "changes_the_gradient")
    assert "read-only: the op writes to the gradient of the output (element " in text
    assert "\nwith x float32 " in text


@pytest.mark.nightly
def test_a_backward_that_changes_what_was_saved_is_named():
    text = said(WRONG_OPS / "changes_the_saved_tensor")
    assert "read-only: the op writes to a tensor saved for the backward (element " in text


def test_what_a_record_lets_its_backward_overwrite_stays_writable():
    x = guard.against_page(torch.ones(8), "end", "x", writable=True).requires_grad_()
    with guard.pages("end"):
        y = x * x  # which saves x
    y.sum().backward()
    assert torch.equal(x.grad, torch.full((8,), 2.0))
    x.detach().zero_()


def test_what_an_op_saves_is_read_only_from_then_on():
    program = """
with guard.pages("end"):
    y = torch.ones(8, requires_grad=True).exp()
y.detach().zero_()
"""
    assert "writes to a tensor saved for the backward (element 0 of 8 in memory)" in ended(program)


# --- the report -----------------------------------------------------------------------------------


@pytest.mark.nightly
def test_with_debug_information_the_line_is_told(monkeypatch):
    monkeypatch.setenv("DEBUG", "1")
    source = (WRONG_OPS / "reads_past_the_end" / "cpu.cpp").read_text().splitlines()
    line = next(i for i, text in enumerate(source, 1) if "// wrong" in text)
    text = said(WRONG_OPS / "reads_past_the_end")
    assert f"at cpu.cpp:{line} in double_row < cpu.cpp:" in text
    assert "in reads_past_the_end-cpu.so\nwith x float32 (64,)" in text


@pytest.mark.nightly
def test_without_it_the_function_is_told():
    assert "    at reads_past_the_end_cpu < " in said(WRONG_OPS / "reads_past_the_end")


COPIES = r"""
#include <opforge/host.h>
#include <cstring>

namespace opforge {

Tensor copied_cpu(const Tensor& x) {
  const Tensor y = empty(sizes(x), x);
  std::memcpy(mutable_data<float>(y), data<float>(x), size_t(x.numel()) * 4 + 4);
  return y;
}

OPFORGE_IMPL(copied, copied_cpu)

}  // namespace opforge
"""
COPIED = """
import torch
from opforge import Op

op = Op(schema="copied(Tensor x) -> Tensor y", reference=lambda x: x + 0, dtypes=(torch.float32,),
        cases=lambda make: [(make(4096),)])
"""


@pytest.mark.nightly
def test_a_fault_inside_memcpy_is_told_of_its_caller(tmp_path):
    text = said(write_op(tmp_path / "copied", op_py=COPIED, cpp=COPIES))
    assert "reads 1 element past the end of x, " in text or "writes right past the end" in text
    assert "    at copied_cpu < " in text


# --- right ops ------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["vector_add", "softmax", "cross_entropy"])
def test_a_right_op_that_reads_to_the_very_end_passes(name):
    report = testing.check(name, on=["cpu"], only=["guard-pages"])
    (result,) = report.ops[0].results
    assert result.outcome == results.PASSED


@pytest.mark.nightly
@pytest.mark.sim
def test_right_simulated_kernels_pass():
    report = testing.check("vector_add", on=["sim"], only=["guard-pages"])
    (result,) = report.ops[0].results
    assert result.outcome == results.PASSED


@pytest.mark.sim
def test_a_fault_of_a_simulated_kernel_ends_no_process():
    op = WRONG_OPS / "reads_past_the_end_on_gpu"
    x = guard.against_page(torch.ones(64), "end", "x")
    with pytest.raises(SimulationError, match="reads 1 element past the end of x"):
        sim.run(op, x)
    assert torch.equal(sim.run(op, torch.ones(64)), torch.full((64,), 2.0))


COPYING = """
using namespace opforge;

struct Room {
  alignas(16) int64_t value[16];
  Barrier full;
};

__global__ void copies_in(const int64_t* x, int64_t*) {
  Room& room = shared<Room>();
  if (threadIdx.x > 0) return;
  init(room.full, 1);
  publish_barriers();
  bulk_copy(room.value, x, 128, room.full);  // 8 of which are not in x
}

__global__ void copies_out(const int64_t*, int64_t* y) {
  Room& room = shared<Room>();
  if (threadIdx.x > 0) return;
  bulk_store(y, room.value, 128);  // 8 of which are not in y
}
"""


@pytest.mark.sim
@pytest.mark.parametrize("kernel", ["copies_in", "copies_out"])
def test_a_bulk_copy_beyond_a_tensor_is_told_of_the_thread_that_asks_for_it(tmp_path, kernel):
    folder = write_kernels(tmp_path, "copying", COPYING)
    which = ["copies_in", "copies_out"].index(kernel)
    x = guard.against_page(torch.arange(8), "end", "x")
    with pytest.raises(SimulationError) as found, guard.pages("end"):
        sim.run(folder, x, which, [1, 1, 1], [32, 1, 1], 0, 1, 8)
    what = "reads 8 elements past the end of x, which spans 8 elements of 8 bytes"
    if kernel == "copies_out":
        what = "writes 63 bytes past the end of 64 bytes that the op allocated"
    assert f"out-of-bounds: thread (0,0,0) of block (0,0,0) {what}" in str(found.value)
    line = line_of(COPYING, f"not in {'xy'[which]}")
    assert f"at cuda.cu:{line} in {kernel}" in str(found.value)
