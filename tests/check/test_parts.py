# SPDX-License-Identifier: Apache-2.0
"""The parts of `opforge check`: the error rule, the inputs it makes, what it says."""

from __future__ import annotations

import pytest
import torch
from helpers import compared
from rich.console import Console

from opforge import discover
from opforge.check import explain, results, show
from opforge.check.place import Place
from opforge.check.row import NotApplicable, NotRun, Trial
from opforge.check.rows import repeats, shapes
from opforge.check.situation import own
from opforge.op import Make
from opforge.truth import compare, inputs
from opforge.truth.cases import as_leaves, check_backward, check_forward
from opforge.truth.expected import ShortSums


@pytest.mark.nightly
def test_one_wrong_element_of_a_hundred_million_is_found():
    truth = torch.zeros(10**8)
    got = truth.clone()
    got[87_654_321] = 1e-3
    with pytest.raises(compare.Mismatch, match=r"at \(87654321,\): got 0.001, .* 1 of 100000000 "):
        compared(got, truth, truth)


def test_either_side_of_a_kink_is_right_and_nothing_further():
    """A step at x² + b = 0, where the rounding of the square decides."""
    x = torch.full((3,), 1.37)
    square = x[0].double() ** 2
    near = square.float()
    far = torch.nextafter(near, torch.tensor(2.0 if near < square else 1.0))
    assert abs(far - square) < 2**-24 * square  # a rounding away
    b = torch.stack([-min(near, far), -max(near, far), torch.tensor(0.5)])

    class Step:
        name, rowwise, pointwise = "step", False, False
        forward = discover.find("vector_add").forward
        outputs = forward.returns

        @staticmethod
        def reference(a, c):
            return (a * a + c > 0).to(a.dtype)

        def __init__(self, results):
            self.results = results

        def __call__(self, a, c):
            return torch.tensor(self.results)

    check_forward(Step([0.0, 1.0, 1.0]), (x, b))
    with pytest.raises(compare.Mismatch, match=r"at \(2,\): got 0, truth 1"):
        check_forward(Step([0.0, 1.0, 0.0]), (x, b))


@pytest.mark.parametrize(("shape", "dim"), [((2, 20011), -1), ((20011, 3), 0), ((2, 5, 3), 1)])
def test_the_truth_about_running_sums_is_nearer_than_a_kernel_must_be(shape, dim):
    """Of equal terms, whose exact sums are products."""
    x = torch.full(shape, 0.1, dtype=torch.float64, requires_grad=True)
    n = shape[dim]
    counts = torch.arange(1, n + 1).reshape([-1 if s == n else 1 for s in shape])
    exact = torch.tensor(0.1, dtype=torch.float64) * counts
    with ShortSums():
        y = torch.cumsum(x, dim)
    (grad,) = torch.autograd.grad(y, x, x.detach())
    allowed = n**0.5 * torch.finfo(torch.float64).eps * float(exact.max())
    assert float((y.detach() - exact).abs().max()) < allowed
    assert float((grad - exact.flip(dim)).abs().max()) < allowed


def test_overflow_may_follow_pytorch_or_the_truth():
    big, inf = torch.full((2,), 6e4).half(), float("inf")
    overflowed = torch.tensor([inf, inf]).half()
    compared(big, overflowed, torch.full((2,), 6e4))  # PyTorch overflowed on its way
    compared(overflowed, overflowed, torch.full((2,), 6e4))
    with pytest.raises(compare.Mismatch, match="NaN or Inf"):
        compared(overflowed, big, torch.full((2,), 6e4))
    with pytest.raises(compare.Mismatch, match=r"error 1\.2e"):
        compared(big * 0.8, overflowed, torch.full((2,), 6e4))


def test_errors_are_reported_in_ulps():
    truth = torch.full((4,), 1.0, dtype=torch.float64)
    got = torch.tensor([1.0, 1.0, 1.0, 1.0 + 2**-23])
    found = compared(got, truth.float(), truth, spread=1e-7)
    assert found.ours.largest == 1.0
    assert found.ours.rms == 0.5
    assert found.torchs.largest == 0.0


@pytest.mark.parametrize(
    "change",
    [inputs.contiguous, inputs.offset, inputs.transposed, inputs.stepped, inputs.padded,
     inputs.negative_view, inputs.channels_last, inputs.far_apart],
)  # fmt: skip
def test_layouts_keep_the_values(change):
    x = torch.randn(2, 3, 4, 5)
    changed = change(x)
    assert torch.equal(changed, x)
    if change is not inputs.contiguous:
        bare = (changed.stride(), changed.storage_offset(), changed.is_neg())
        assert bare != (x.stride(), 0, False)


def test_what_the_op_lets_us_is_cut_short_while_one_size_is_long():
    trial = Trial(discover.find("stencil2d"), Place("cpu"))
    base = own(trial.op, trial.place, torch.float32, 0)[1]
    assert [tuple(x.shape) for x in base.tensors.values()] == [(2, 35, 48), (9,)]
    for chosen, shape in ((2, (500, 3, 3)), (35, (2, 500, 3))):
        s = trial.resized(base, chosen, 500, 3)
        assert s is not None
        assert [tuple(x.shape) for x in s.tensors.values()] == [shape, (9,)]
    assert trial.resized(base, 9, 500, 3) is None  # a stencil has 5 or 9 weights


def test_a_resized_case_keeps_what_belongs_together():
    s = own(discover.find("scale_bias_relu"), Place("cpu"), torch.float32, 0)[5]
    assert s.sizes() == [64, 33]
    wide = s.resize({33: 1025})
    assert [tuple(t.shape) for t in wide.tensors.values()] == [(64, 1025), (1025,)]
    assert wide.makes_sense()
    assert not s.change("bias", inputs.resample, (34,)).makes_sense()
    assert set(wide.values["x"].flatten().tolist()) <= set(s.values["x"].flatten().tolist())


def test_gradients_of_strided_cases_keep_their_strides():
    op = discover.find("relu")
    case = as_leaves((torch.randn(6, 8).t(),))
    assert case[0].stride() == (1, 8)
    (grad,) = check_backward(op, case)
    assert grad.shape == (8, 6)


@pytest.mark.parametrize(
    ("explain_it", "message", "said"),
    [
        (explain.opcheck, "Tensor's metadata did not match: stride", "the fake kernel, by which"),
        (
            explain.opcheck,
            "Argument x is not defined as mutable but was mutated",
            "writes to one of",
        ),
        (explain.opcheck, "x is not defined to alias output but was aliasing", "shares memory"),
        (explain.gradcheck, "Jacobian mismatch for output 0", "not the derivative of the forward"),
        (explain.gradcheck, "Backward is not reentrant", "different gradients when it runs again"),
    ],
)
def test_torchs_own_tests_are_explained(explain_it, message, said):
    text = explain_it(message)
    assert said in text
    assert message in text


def test_the_score_table_has_every_row_and_op():
    result = results.Result("offset", "sim", results.FAILED)
    skipped = results.Result("huge", "cuda", results.NOT_RUN, text="no CUDA GPU here")
    op = results.OpReport("relu", "relu", [result, skipped])
    report = results.Report([op], {"check": "quick"})
    table = show.score_table([report])
    assert "| 4★ | offset | s✗ |" in table
    assert "| 11★ | huge | g– |" in table
    assert "| relu | simulator | quick | 0 | 1 | 0 | 0 of 1 |" in show.summary_table([report])


def test_few_rows_have_the_values_of_a_huge_case():
    trial = Trial(discover.find("scale_bias_relu"), Place("cpu"))
    base = next(s for s in trial.kinds(torch.float32) if s.tensors["x"].dim() == 2)
    rows = base.tensors["x"].shape[0]
    few, many = (shapes._in_rows(base, rows, n, 3) for n in (inputs.VALUES, 40_000))
    assert [tuple(t.shape) for t in many.tensors.values()] == [(40_000, 3), (3,)]
    for name, tensor in few.tensors.items():
        assert torch.equal(tensor.unique(), many.tensors[name].unique())


def test_a_huge_case_whose_truth_takes_long_is_left_out(monkeypatch):
    monkeypatch.setattr(shapes, "_seconds", lambda s: 1.0)
    with pytest.raises(NotRun, match=r"^0 situations; \d+ left out: more than 10 s with the truth"):
        shapes.huge(Trial(discover.find("relu"), Place("cpu")))


def test_the_others_are_timed_at_a_small_part_of_them(monkeypatch):
    timed, huge = [], []
    monkeypatch.setattr(shapes, "_seconds", lambda s: timed.append(s.tensors["x"].numel()) or 0.0)
    monkeypatch.setattr(shapes, "_one_huge", lambda t, s, g: huge.append(s.tensors["x"].numel()))
    monkeypatch.setattr(inputs, "repeated", lambda t, shape: t.reshape(-1)[0].expand(shape))
    trial = Trial(discover.find("relu"), Place("cpu"))
    shapes.huge(trial)
    assert trial.note == f"{len(huge)} situations"
    assert min(huge) >= 2**31 - 1
    assert max(timed) <= 2**25 + 1


def test_the_sanitizer_is_for_kernels_of_the_ops_own():
    trial = Trial(discover.find("linear_cross_entropy"), Place("cuda"))
    trial.sanitize = True
    with pytest.raises(NotApplicable, match="composed of other ops; the tools run on those"):
        repeats.sanitizer_row(trial)


def test_totals_add_up_the_ops_of_all_reports():
    def report(op, check, *outcomes):
        found = [results.Result("offset", "cpu", x) for x in outcomes]
        return results.Report([results.OpReport(op, op, found)], {"check": check})

    table = show.totals_table(
        [
            report("relu", "full", results.PASSED, results.NOT_APPLICABLE),
            report("rope", "quick", results.PASSED, results.FAILED, results.NOT_RUN),
        ]
    )
    assert table.splitlines()[2:] == ["| CPU | 2 | 1 | 2 | 1 | 1 | 2 of 3 |"]


def test_make_gives_other_values_for_another_seed():
    assert not torch.equal(Make(seed=1)(5), Make(seed=2)(5))


def test_ulps_of_a_truth_that_is_0_but_for_rounding_are_not_shown():
    near_0 = {"max": 1.62e32, "rms": 1e30, "torch_max": 1.5e32, "torch_rms": 1e30}
    usual = {"max": 1.5, "rms": 0.31, "torch_max": 1.5, "torch_rms": 0.31}
    found = [
        results.Result("own-cases", "cpu", results.PASSED, errors={"forward": usual}),
        results.Result("gradients", "cpu", results.PASSED, errors={"backward": near_0}),
    ]
    out = Console(width=200)
    with out.capture() as captured:
        op = results.OpReport("relu", "relu", found)
        show.on_console(results.Report([op], {"check": "quick"}), out)
    assert "CPU forward: at most 1.5 ulp from the truth, rms 0.31" in captured.get()
    assert "e+32" not in captured.get()
    assert (
        "CPU backward: errors in ulps mean nothing here: some true values are 0 except for rounding"
        in captured.get()
    )
