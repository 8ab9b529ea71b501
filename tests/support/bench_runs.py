# SPDX-License-Identifier: Apache-2.0
"""`opforge bench` on small ops of a test's own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from helpers import write_op

from opforge import cli
from opforge.bench import clock, results, runner

SIZE = "128x256"

RECORD = """\
import torch
from opforge import Op

{before}

op = Op(
    schema="{name}(Tensor x) -> Tensor y",
    reference={reference},
    dtypes=(torch.float32,),
    sized=lambda make, *shape: (make(*shape),),
    peers={{{peers}}},
)
"""


def write(
    folder: Path,
    name: str,
    before: str = "",
    reference: str = "lambda x: 2 * x",
    cpp: str | None = None,
    **peers: str,
) -> Path:
    """An op folder; every peer is the text of a function that imports it."""
    text = ", ".join(f'"{peer}": {code}' for peer, code in peers.items())
    record = RECORD.format(name=name, before=before, reference=reference, peers=text)
    return write_op(folder / name, op_py=record, cpp=cpp)


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


Bench = Callable[..., Done]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Bench]:
    """The command in this process: little patience, a small cache to flush, a single thread."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(runner, "_SECONDS", 0.1)
    monkeypatch.setattr(clock, "_last_level_cache", lambda: 1 << 20)

    def run(*arguments: object) -> Done:
        where = [] if "--on" in arguments else ["--on", "cpu"]
        monkeypatch.setattr(sys, "argv", ["opforge", "bench", *map(str, arguments), *where])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return Done(int(ended.value.code or 0), captured.out, captured.err)

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield run
    torch.set_num_threads(threads)


def rows_of(file: Path) -> dict[str, results.Row]:
    """The rows of a file by implementation; it has one workload."""
    (rows,) = results.read(file).workloads().values()
    return rows
