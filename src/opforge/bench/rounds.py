# SPDX-License-Identifier: Apache-2.0
"""Measures in rounds: several workloads are prepared in parallel, then timed one by one.

Most of a benchmark's time is spent on compiling peers, which can run in parallel. Timing needs the
machine for itself. So worker processes (worker.py) prepare one workload each and wait. When the
last one is ready, each is timed while the others sleep. Then all compare results with the truth.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from multiprocessing import Pipe
from typing import Any

from opforge.bench.measure import OUT_OF_MEMORY, Say, Workload, failed
from opforge.bench.results import Row
from opforge.bench.stats import Patience
from opforge.discover import where
from opforge.errors import OpforgeError
from opforge.terminal.processes import ending, kill_group

Task = tuple[Workload, Patience]
_SECONDS = 1800.0  # limit for preparing or timing, far more than any workload takes


def measure_all(
    tasks: Sequence[Task],
    jobs: int,
    device: str,
    wanted: Sequence[str] | None,
    run: str,
    say: Say,
) -> Generator[list[Row], None, None]:
    """The rows of all workloads, in order."""
    with contextlib.closing(_Rounds(jobs, device, wanted, run, say)) as rounds:
        for start in range(0, len(tasks), jobs):
            part = tasks[start : start + jobs]
            for task, rows in zip(part, rounds.round(part), strict=True):
                if len(part) > 1 and any(row.error == OUT_OF_MEMORY for row in rows):
                    yield rounds.round([task])[
                        0
                    ]  # other workloads may have used the memory: run it again, alone
                else:
                    yield rows


class _Rounds:
    def __init__(
        self, jobs: int, device: str, wanted: Sequence[str] | None, run: str, say: Say
    ) -> None:
        self._jobs, self._device, self._wanted, self._run = jobs, device, wanted, run
        self._say = say
        self._workers: list[
            _Worker
        ] = []  # kept, because the first use of a GPU takes seconds in each

    def close(self) -> None:
        for worker in self._workers:
            worker.end()

    def round(self, tasks: Sequence[Task]) -> list[list[Row]]:
        """The rows of each workload. If its worker is lost, they have an error."""
        self._start(len(tasks) - len(self._workers))
        messages = [
            (where(work.op), work.direction, work.variant, work.dtype, work.shape, patience)
            for work, patience in tasks
        ]
        answers = self._all_at_once(self._workers, messages, [work.title for work, _ in tasks])
        self._workers = [worker for worker in self._workers if not worker.ended]
        return [
            failed(work, self._device, self._wanted, self._run, answer)
            if isinstance(answer, str)
            else answer
            for (work, _), answer in zip(tasks, answers, strict=True)
        ]

    def _start(self, count: int) -> None:
        """Start ``count`` more workers. Making a clock uses the GPU, so they take turns."""
        new = [_Worker(self._jobs) for _ in range(count)]
        self._workers += new
        messages = [(self._device, self._wanted, self._run)] * count
        for answer in self._all_at_once(new, messages, ["a worker"] * count):
            if isinstance(answer, str):
                raise OpforgeError(f"--jobs {self._jobs}: a worker could not start: {answer}")

    def _all_at_once(
        self, workers: Sequence[_Worker], messages: Sequence[Any], titles: Sequence[str]
    ) -> list[Any]:
        """Send a message to each of the first workers. Returns the final answer of each."""
        answers: list[Any] = []
        for worker, message in zip(workers, messages, strict=False):
            worker.send(message)
        for worker, title in zip(workers, titles, strict=False):
            self._say(f"{title}: preparing")
            answers.append(worker.receive())
        ready = [i for i, answer in enumerate(answers) if answer is None]
        for i in ready:  # one after the other
            self._say(f"{titles[i]}: timing")
            workers[i].send(None)
            answers[i] = workers[i].receive()
        timed = [i for i in ready if answers[i] is None]
        for i in timed:
            workers[i].send(None)
        for i in timed:
            answers[i] = workers[i].receive()
        return answers


class _Worker:
    def __init__(self, jobs: int) -> None:
        # By default Inductor would start a process per core, for every worker.
        threads = max(1, len(os.sched_getaffinity(0)) // jobs)
        environment = {"TORCHINDUCTOR_COMPILE_THREADS": str(threads), **os.environ}
        self._pipe, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "opforge.bench.worker", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            env=environment,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C goes to this process, which ends its workers
        )
        theirs.close()
        self.ended = False

    def send(self, message: Any) -> None:
        with contextlib.suppress(OSError):  # it has ended: receive() says how
            self._pipe.send(message)

    def receive(self) -> Any:
        """The next answer: None if it waits for us, rows, or a text that says why it ended."""
        deadline = time.monotonic() + _SECONDS
        try:
            while not self._pipe.poll(1.0):
                # Its child processes may still hold the pipe open.
                if self._process.poll() is not None:
                    raise EOFError
                if time.monotonic() > deadline:
                    self.end()
                    return f"the process that measured it did not answer for {_SECONDS:.0f} s"
            message = self._pipe.recv()
        except (EOFError, OSError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
            self.end()
            how = ending(self._process.returncode)
            return f"the process that measured it is gone: {how}"
        if isinstance(message, str):
            self.end()
        return message

    def end(self) -> None:
        if self.ended:
            return
        kill_group(self._process)
        self._process.wait()
        self._pipe.close()
        self.ended = True
