# SPDX-License-Identifier: Apache-2.0
"""Starts, drives and ends the worker process that runs rows."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from opforge.check.options import Options
from opforge.check.results import FAILED, Result
from opforge.discover import where
from opforge.errors import OpforgeError
from opforge.op import Op
from opforge.terminal.processes import ending, kill_group
from opforge.truth import guard

_SECONDS = {False: 300.0, True: 900.0}  # limit for one row, quick and full
_SANITIZER_SECONDS = 2400.0


class Impossible(OpforgeError):
    """The op cannot be checked at all."""


class Worker:
    """A worker process that runs rows. It is started for each op, and again after a crash."""

    def __init__(self, options: Options) -> None:
        self._options = options
        usual = _SANITIZER_SECONDS if options.sanitize else _SECONDS[options.full]
        self._limit = options.seconds or usual
        self._op: Op | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._reading = -1
        self._buffer = b""
        self._errors: IO[bytes] | None = None
        self.killed = False
        self._tried: dict[str, str] = {}  # what the process is running, if it has said so
        self.kernel = ""  # a description of what the last row ran

    def run(self, op: Op, row: str, place: str) -> Result:
        """Run one row. If the process crashes or hangs, that is the result of the row."""
        if op is not self._op:  # a process serves one op
            self.close()
            self._op = op
        if self._process is None:
            self._start(op)
        began = time.monotonic()
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{json.dumps([row, place])}\n".encode())
            self._process.stdin.flush()
        message = self._message()
        if message is not None:
            result = Result(**message["result"])
            self.kernel = message["kernel"]
            if message["last"]:
                self._end()
        else:
            how, said = self._end()
            last = _last_line(said)
            if guard.SAYS in said:
                text = said.rpartition(guard.SAYS)[2]
            else:
                text = f"the process that ran the kernel is gone: {how}"
                text += f"\nits last words: {last[-300:]}" if last else ""
            tried = self._tried.get("trying")
            text += f"\nwith {tried}" if tried else ""
            result = Result(row, place, FAILED, time.monotonic() - began, text)
            result.script = self._tried.get("script", "")
            self.kernel = ""
        if result.outcome == FAILED:
            options = f"on=[{place!r}], only=[{row!r}], seed={self._options.seed}"
            options += ", full=True" if self._options.full else ""
            whole = f"opforge.testing.check({where(op)!r}, {options})"
            if result.script:
                result.script += f"\n# The whole row, if it takes more than one call:\n# {whole}"
            else:
                result.script = f"import opforge.testing\n\n{whole}"
        return result

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._end()

    def kill(self) -> None:
        """End the process at once, and do not start another one. Any thread may call this."""
        self.killed = True
        process = self._process
        if process is not None:
            kill_group(process)

    def _start(self, op: Op) -> None:
        job = {
            "op": where(op),
            "seed": self._options.seed,
            "full": self._options.full,
            "sanitize": self._options.sanitize,
        }
        self._reading, writing = os.pipe()
        command = [
            sys.executable,
            "-m",
            "opforge.check.worker",
            json.dumps(job),
            str(writing),
        ]
        # Threads that spin while they wait make small tensors ten times slower on a busy machine.
        environment = {
            "OMP_WAIT_POLICY": "passive",
            # Keep the memory of large tensors: allocating it again takes longer than the math.
            "MALLOC_MMAP_MAX_": "0",
            "MALLOC_TRIM_THRESHOLD_": str(1 << 33),
            "KINETO_LOG_LEVEL": "99",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(Path(tempfile.gettempdir()) / "hypothesis"),
            **os.environ,
        }
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            pass_fds=(writing,),
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,
        )
        os.close(writing)
        if self.killed:  # killed during the start
            kill_group(self._process)
        self._buffer = b""
        message = self._message()
        if message is None or "impossible" in message:
            how, said = self._end()
            text = (
                f"the process that checks it ended immediately: {how}\n{_last_line(said)[-2000:]}"
            )
            raise Impossible(text if message is None else message["impossible"])

    def _message(self) -> Any:
        """The next message of the process, or None if it ends or takes too long."""
        deadline = time.monotonic() + self._limit
        self._tried = {}
        while True:
            line = self._line(deadline)
            if line is None:
                return None
            message = json.loads(line)
            if "trying" not in message:
                return message
            self._tried = message

    def _line(self, deadline: float) -> bytes | None:
        while b"\n" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._reading], [], [], left)[0]:
                return None
            got = os.read(self._reading, 65536)
            if not got:
                return None
            self._buffer += got
        line, self._buffer = self._buffer.split(b"\n", 1)
        return line

    def _end(self) -> tuple[str, str]:
        """End the process if it is still running. Returns how it ended and what it printed."""
        process, self._process = self._process, None
        assert process is not None
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        hung = False
        try:
            process.wait(10)  # without more input it ends by itself
        except subprocess.TimeoutExpired:
            hung = True
        kill_group(process)  # also ends processes that a row has started
        process.wait()
        os.close(self._reading)
        assert self._errors is not None
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip()
        self._errors.close()
        how = f"it did not answer for {self._limit:.0f} s" if hung else ending(process.returncode)
        return how, said


def _last_line(text: str) -> str:
    return text.rpartition("\n")[2]
