# SPDX-License-Identifier: Apache-2.0
"""The simulator gives the bits that a real GPU gave on the same inputs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from opforge import discover, sim
from opforge.truth import compare

sys.path.insert(0, str(Path(__file__).parents[1] / "golden"))
import golden

pytestmark = pytest.mark.sim


@pytest.mark.parametrize("name", sorted(golden.LARGE))
@pytest.mark.parametrize("dtype", golden.DTYPES, ids=lambda d: str(d).removeprefix("torch."))
def test_the_simulator_gives_the_bits_of_the_gpu(name, dtype):
    op = discover.find(name)
    kept = torch.load(golden.FOLDER / f"{name}.pt", weights_only=True)
    assert "H200" in kept["facts"]["gpu"]
    made = dict(golden.cases(op, dtype))
    entries = [e for e in kept["entries"] if e["dtype"] == dtype]
    assert len(entries) > len(golden.LARGE[name])
    for entry in entries:
        case = entry["arguments"] or made[entry["label"]]
        with sim.active():
            results = golden.run(op, case, "cpu")
        for kind, tensors in results.items():
            for number, (tensor, right) in enumerate(zip(tensors, entry[kind], strict=True)):
                got = golden.bits(tensor)
                what = f"{kind} {number} of {entry['label']}"
                if isinstance(right, str):
                    assert got == right, what
                else:
                    assert torch.equal(compare.bits(got), compare.bits(right)), what


def test_launches_beyond_the_limits_fail_with_the_names_cuda_gives():
    kept = json.loads((golden.FOLDER / "launch_errors.json").read_text())
    with sim.active():
        assert golden.launch_errors("cpu") == kept
    assert set(kept) == {"", "cudaErrorInvalidValue"}


def test_a_changed_bit_is_noticed():
    x = golden.scrambled((300, 300), torch.float32, 0)
    y = x.clone()
    y[7, 7] = torch.nextafter(y[7, 7], torch.tensor(9.0))
    assert golden.bits(x) != golden.bits(y)
