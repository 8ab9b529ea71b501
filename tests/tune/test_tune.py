# SPDX-License-Identifier: Apache-2.0
"""Tables of choices: how they are written and read, and that kernels follow them."""

from __future__ import annotations

import ctypes

import pytest
import torch
from typer.testing import CliRunner

import opforge
from opforge import discover, sim
from opforge.build import choices
from opforge.build.targets import SIM_RACE
from opforge.cli import app
from opforge.errors import OpforgeError
from opforge.sim import runtime
from opforge.tune import table
from opforge.tune.table import Choice, Product

PRODUCT = Product("bf16", "ii", 64, 40, 128)


def test_a_table_keeps_the_newest_choice_of_a_product(tmp_path):
    file = tmp_path / "gpu" / "table.txt"
    other = Product("f16", "oo", 8, 8, 8)
    table.merge(file, [(PRODUCT, Choice("ii_large")), (other, Choice("oo_pingpong", 4, "columns"))])
    table.merge(file, [(PRODUCT, Choice("ii_pingpong", 16))])
    assert table.read(file) == {
        PRODUCT: Choice("ii_pingpong", 16),
        other: Choice("oo_pingpong", 4, "columns"),
    }
    file.write_text(file.read_text() + "bf16 ii many 1 1 ii_large 8 rows\nnonsense\n")
    assert set(table.read(file)) == {PRODUCT, other}
    assert table.read(tmp_path / "none.txt") == {}


def test_what_libraries_write_down_is_read():
    text = "bf16 ii 64 40 128 ii_large ii_pingpong\nf32 ii 8 8 8 tf32_large\n"
    assert table.recorded(text) == {
        PRODUCT: ["ii_large", "ii_pingpong"],
        Product("f32", "ii", 8, 8, 8): ["tf32_large"],
    }


def test_the_own_table_counts_before_the_one_that_ships(tmp_path, monkeypatch):
    op = discover.find("linear")
    monkeypatch.setattr(choices, "gpu", lambda: "some-gpu")
    files = [tmp_path / "shipped.txt", tmp_path / "own.txt"]
    monkeypatch.setattr(choices, "shipped", lambda op, gpu: files[0])
    monkeypatch.setattr(choices, "own", lambda op, gpu: files[1])
    assert choices.table(op) == ""
    files[0].write_text("shipped\n")
    files[1].write_text("own\n")
    assert choices.table(op) == "own\nshipped\n"


@pytest.mark.sim
@pytest.mark.nightly
def test_kernels_follow_the_table():
    op = discover.find("linear")
    x, weight = (torch.randn(n, 128, dtype=torch.bfloat16) for n in (64, 40))

    def kernel(active, text):
        library = ctypes.CDLL(str(runtime.loaded_path(op, SIM_RACE.name)))
        library.opforge_set_choices(text.encode())
        try:
            opforge.linear(x, weight)
        finally:
            library.opforge_set_choices(b"")
        return shape(active)

    def shape(active):
        launch = active[-1].launches[-1]
        return launch.blocks, launch.threads

    with sim.active("race", traffic=True) as calls:
        opforge.linear(x, weight)
        usual = shape(calls)
        chosen = kernel(calls, table.line(PRODUCT, Choice("ii_large")))
        assert chosen != usual
        assert chosen[1] == 3 * 128  # one warp group fetches, two multiply
        near = Product("bf16", "ii", 72, 40, 128)  # about the same size
        assert kernel(calls, table.line(near, Choice("ii_large"))) == chosen
        for text in (
            table.line(Product("bf16", "ii", 640, 40, 128), Choice("ii_large")),  # far from it
            table.line(Product("f16", "ii", 64, 40, 128), Choice("ii_large")),
            table.line(PRODUCT, Choice("of_an_older_version")),
            "# a comment\n",
        ):
            assert kernel(calls, text) == usual


def test_the_command_says_what_it_needs():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(OpforgeError, match="measures kernels on a GPU, but there is no CUDA GPU"):
        CliRunner().invoke(app, ["tune", "linear"], catch_exceptions=False)
