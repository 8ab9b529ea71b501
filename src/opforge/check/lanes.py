# SPDX-License-Identifier: Apache-2.0
"""Distributes rows over worker processes. A lane is a worker process and its thread."""

from __future__ import annotations

import queue
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from opforge.check.options import Options
from opforge.check.process import Impossible, Worker
from opforge.check.results import FAILED, OpReport, Result
from opforge.op import Op


@dataclass(frozen=True)
class Task:
    """A row of an op at a place, and the report that gets its result."""

    op: Op
    report: OpReport
    row: str
    place: str


class _Waiting:
    """The queue of tasks that no lane has taken yet."""

    def __init__(self, tasks: list[Task]) -> None:
        self._lock = threading.Lock()
        self._lanes: Counter[Op] = Counter()
        self._left: dict[Op, deque[Task]] = {task.op: deque() for task in tasks}
        for task in tasks:
            self._left[task.op].append(task)

    def take(self, last: Task | None) -> Task | None:
        """The next task for a lane that has finished ``last``, or None if none is left.

        The same row at another place comes first, because its process has the truth in its cache.
        A new op needs a new process; the op with the most tasks per lane comes first.
        """
        op = last.op if last else None
        with self._lock:
            if op is None or not self._left[op]:
                if op is not None:
                    self._lanes[op] -= 1
                found = [other for other, tasks in self._left.items() if tasks]
                if not found:
                    return None
                op = max(found, key=lambda o: len(self._left[o]) / (self._lanes[o] + 1))
                self._lanes[op] += 1
            left = self._left[op]
            known = last.row if last and last.op is op else None
            task = next((t for t in left if t.row == known), left[0])
            left.remove(task)
            return task

    def clear(self) -> None:
        """Drop all tasks that have not started."""
        with self._lock:
            for tasks in self._left.values():
                tasks.clear()


Keep = Callable[[Task, Result], None]
_Done = queue.SimpleQueue[tuple[Task, Result] | Exception | None]


def run(groups: list[tuple[list[Task], int]], options: Options, keep: Keep) -> None:
    """Run groups of tasks in parallel, each in its number of lanes. ``keep`` gets the results.

    If an op turns out to be impossible to check, its other tasks are dropped, and its report says
    so.
    """
    done: _Done = queue.SimpleQueue()
    waiting = [_Waiting(tasks) for tasks, _ in groups]
    workers, threads = [], []
    for (tasks, lanes), left in zip(groups, waiting, strict=True):
        for _ in range(min(lanes, len(tasks))):
            workers.append(Worker(options))
            every = waiting if options.stop else []
            threads.append(threading.Thread(target=_follow, args=(workers[-1], left, every, done)))
    try:
        for thread in threads:
            thread.start()
        running = len(threads)
        while running:
            message = done.get()
            if message is None:
                running -= 1
            elif isinstance(message, Exception):
                raise message
            else:
                keep(*message)
    except BaseException:  # such as Ctrl-C: do not wait for any row
        for left in waiting:
            left.clear()
        for worker in workers:
            worker.kill()
        raise
    finally:
        for thread in threads:
            if thread.ident is not None:
                thread.join()


def _follow(worker: Worker, waiting: _Waiting, stopped: list[_Waiting], done: _Done) -> None:
    """Run waiting tasks. After a failure, clear the queues in ``stopped``."""
    task = None
    try:
        while (task := waiting.take(task)) is not None:
            if task.report.impossible:
                continue
            try:
                result = worker.run(task.op, task.row, task.place)
            except Impossible as error:
                if worker.killed:  # by us, which says nothing about the op
                    return
                task.report.impossible = str(error)
                continue
            if worker.kernel:
                task.report.kernels[task.place] = worker.kernel
            for left in stopped if result.outcome == FAILED else ():
                left.clear()
            done.put((task, result))
    except Exception as error:
        done.put(error)
    finally:
        try:
            worker.close()
        finally:
            done.put(None)
