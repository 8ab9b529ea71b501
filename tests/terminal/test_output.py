# SPDX-License-Identifier: Apache-2.0
"""What commands write to a terminal, a pipe and files: nothing is cut, and nobody is surprised."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time

import pytest
from helpers import python, write_op
from rich.console import Console
from typer.testing import CliRunner

from opforge import cli, discover
from opforge.bench import show
from opforge.bench.results import Results, Row

COMMAND = [sys.executable, "-m", "opforge"]


def row(implementation: str = "opforge", us: float = 1036.5, noise: float = 0.01, **more) -> Row:
    facts = {"bytes": 134217728, "operations": 67108864, "ceilings": {"copy": 900.0}}
    facts |= {"ceiling": "copy", "host_us": 12.3, "extra_bytes": 1234567}
    bounds = {"us": us, "low": us * (1 - noise), "high": us * (1 + noise)}
    where = ("scale_bias_relu", "forward", "", "bfloat16", (16384, 4096))
    return Row(*where, implementation, "r1", **bounds, **facts, **more)


def shown(width: int, *rows: Row) -> str:
    out = Console(width=width, force_terminal=True, color_system=None)
    with out.capture() as captured:
        show.on_console(Results(list(rows), {"r1": {}}), out)
    return captured.get()


def in_terminal(columns: int, *arguments: object) -> str:
    """What a command prints in a terminal of so many columns."""
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, columns))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    child = subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdin=follower,
        stdout=follower,
        stderr=subprocess.DEVNULL,
        env={**environment, "TERM": "dumb"},
    )
    os.close(follower)
    said = b""
    try:
        while part := os.read(leader, 65536):
            said += part
    except OSError:  # how Linux says that the other end is closed
        pass
    child.wait()
    os.close(leader)
    return said.decode().replace("\r\n", "\n")


# --- tables ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 60, 80, 100, 200])
def test_no_number_of_a_benchmark_is_cut(width):
    text = shown(width, row(), row("torch.compile", 1234.5))
    table = text.split("\n\n")[0]
    assert "…" not in text
    left_out = re.search("no room for (.*): in a wider", text)
    gone = left_out[1].split(", ") if left_out else []
    cells = {"µs": "1036", "%": "87", "speed": "1.19× torch.compile", "±": "1.0%", "GB/s": "129",
             "MB": "134", "Mop": "67.1", "host µs": "12.3", "extra MB": "1.23"}  # fmt: skip
    for head, cell in cells.items():
        assert (cell in table) == (head not in gone), f"{head} at {width}: {text}"
    assert {"µs", "%", "speed"}.isdisjoint(gone)
    assert bool(gone) == (width < 100)


def test_names_and_marks_are_whole_on_a_narrow_terminal():
    schemas = in_terminal(60, "list", "relu", "softmax")
    assert "…" not in schemas
    for name in ("relu_backward", "softmax_backward"):
        assert name in schemas
    text = in_terminal(60, "check", "--rows")
    assert "…" not in text
    assert re.search(r"8★ +narrow-gradient +c s g +After torch\.cat", text)
    assert "as contiguous" in " ".join(text.split())


def test_in_a_pipe_nothing_is_wrapped():
    done = subprocess.run([*COMMAND, "check", "--rows"], capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if "narrow-gradient" in line]
    assert len(lines) == 1
    assert lines[0].rstrip().endswith("reads elements of other gradients.")


def test_in_a_pipe_the_list_has_an_op_a_line():
    done = subprocess.run([*COMMAND, "list"], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert [line.split("\t")[0] for line in lines] == discover.builtin_names()
    relu = next(line for line in lines if line.startswith("relu"))
    assert relu == (
        "relu\trelu(Tensor x) -> Tensor y; relu_backward(Tensor grad_y, Tensor y) -> Tensor grad_x"
        "\tcpu, cuda\tfloat32, float16, bfloat16, float64"
    )


def test_no_winner_is_named_within_the_noise():
    assert "torch.compile, within the noise" in shown(200, row(noise=39.68), row("torch.compile"))
    close = shown(200, row(us=100.0, noise=0.02), row("eager", 103.0, noise=0.02))
    assert "eager, within the noise" in close
    assert "×" not in close.split("\n")[2].split("16384 × 4096")[1]
    clear = shown(200, row(us=100.0, noise=0.01), row("eager", 103.0, noise=0.01))
    assert "1.03× eager" in clear


# --- markup ---------------------------------------------------------------------------------------


def test_brackets_are_printed_as_they_are(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", "/nowhere")
    assert "→ pip install 'opforge[cuda]'" in CliRunner().invoke(cli.app, ["doctor"]).output
    folder = write_op(tmp_path / "[bold]op", name="bracketed", cpp="kernel")
    monkeypatch.setenv("OPFORGE_CACHE_DIR", str(tmp_path / "[red]cache"))
    said = CliRunner().invoke(cli.app, ["build", str(folder)]).output
    assert "CUDA kernels are left out: CUDA_HOME=/nowhere has no bin/nvcc" in said
    assert f"{tmp_path}/[red]cache/libs/bracketed-cpu-" in said
    assert f"{tmp_path}/[red]cache\n" in CliRunner().invoke(cli.app, ["cache", "ls"]).output


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["check", "relu", "--json"],
        ["check", "relu", "--html"],
        ["bench", "relu", "--on", "cpu", "--json"],
        ["report", "-o"],
        ["profile", "relu", "--shape", "8x8", "--json"],
    ],
)
def test_a_file_that_cannot_be_written_is_named_before_anything_is_run(
    tmp_path, monkeypatch, capsys, arguments
):
    def nothing(*args: object, **options: object) -> None:
        raise AssertionError("it was run")

    for work in ("check.runner.check", "bench.runner.run", "report.load.load",
                 "profile.report.make"):  # fmt: skip
        monkeypatch.setattr(f"opforge.{work}", nothing)
    (tmp_path / "file").touch()
    beneath, folder = tmp_path / "file" / "r.json", tmp_path / "folder.json"
    folder.mkdir()
    reasons = {beneath: "Not a directory", folder: "Is a directory"}
    if arguments[0] == "bench":  # it puts <op>.json into a folder
        del reasons[folder]
    for file, reason in reasons.items():
        monkeypatch.setattr(sys, "argv", ["opforge", *arguments, str(file)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 2
        assert re.fullmatch(
            f"opforge: {re.escape(str(file))} cannot be written: ({reason}|File exists)\n",
            capsys.readouterr().err,
        )


def test_to_look_whether_a_file_can_be_written_leaves_it_alone(tmp_path):
    from opforge.terminal.output import must_be_writable

    new, old = tmp_path / "new", tmp_path / "old"
    old.write_text("kept")
    for file in (new, old):
        must_be_writable(file)
    assert not new.exists()
    assert old.read_text() == "kept"


# --- pipes and Ctrl-C -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments", [["list"], ["--help"], ["doctor", "--json"], ["check", "--rows"]]
)
@pytest.mark.nightly
def test_a_reader_that_goes_away_ends_the_command_quietly(arguments):
    reading, writing = os.pipe()
    child = subprocess.Popen([*COMMAND, *arguments], stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    os.close(reading)
    _, said = child.communicate()
    assert said == b""
    assert child.returncode == -signal.SIGPIPE  # as of any other tool


WAITING = """
    import os, pathlib, time
    import torch
    from opforge import Op

    def reference(x):
        if x.numel() == 0:
            pathlib.Path(os.environ["WAITS"]).touch()
            time.sleep(600)
        return 2 * x

    op = Op(schema="waits(Tensor x) -> Tensor y", reference=reference, dtypes=(torch.float32,),
            cases=lambda make: [(make(7),), (make(5, 33),)])
"""


def test_an_interrupted_check_shows_and_writes_what_is_done(tmp_path):
    folder = write_op(tmp_path / "waits", op_py=WAITING, cpp=None)
    file = tmp_path / "report.json"
    only = ["--only", "own-cases", "--only", "empty", "--only", "offset"]
    check = subprocess.Popen(
        [*COMMAND, "check", folder, "--on", "cpu", *only, "--json", file],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "WAITS": str(tmp_path / "waits_now")},
        # What is started in the background ignores the signal.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while not (tmp_path / "waits_now").exists():  # own-cases is done, and empty has begun
        assert check.poll() is None
        time.sleep(0.1)
    check.send_signal(signal.SIGINT)
    said, errors = check.communicate()
    assert check.returncode == 130, said + errors
    assert errors == ""
    assert re.search(r" own-cases +✓", said)
    assert "waits: 1 passed, 0 failed, 0 not run" in said
    assert "interrupted after 1 of 3 rows" in said
    written = file.read_text()
    assert '"interrupted": true' in written
    assert '"row": "own-cases"' in written


# --- quickly, and names ---------------------------------------------------------------------------


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_help_and_version_do_not_import_torch(option):
    code = """
        import sys
        from opforge.cli import main
        sys.argv = ["opforge", sys.argv[1]]
        try:
            main()
        except SystemExit as end:
            assert end.code == 0
        assert "torch" not in sys.modules
    """
    assert "opforge" in python(code, option).stdout


def test_the_version():
    import opforge

    assert CliRunner().invoke(cli.app, ["--version"]).output == f"opforge {opforge.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["list", "sofmax"], "nor an op folder (a folder with an op.py); did you mean 'softmax'?"),
        (
            ["list", "ops/mine_op"],
            "nor an op folder (a folder with an op.py); did you mean 'ops/my_op'?",
        ),
        (["check", "relu", "--only", "narrow-gradiant"], "; did you mean 'narrow-gradient'?"),
    ],
)
def test_a_misspelled_name_is_answered_with_the_likely_one(
    tmp_path, monkeypatch, capsys, arguments, said
):
    write_op(tmp_path / "ops" / "my_op", cpp=None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["opforge", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f"{said}\n")


def test_a_name_that_is_like_no_other_gets_no_suggestion(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["opforge", "list", "qqqq"])
    with pytest.raises(SystemExit):
        cli.main()
    assert capsys.readouterr().err.endswith("nor an op folder (a folder with an op.py)\n")
