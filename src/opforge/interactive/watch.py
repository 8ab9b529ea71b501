# SPDX-License-Identifier: Apache-2.0
"""The function of ``opforge.load(path, watch=True)``, which loads its op again after a change."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from opforge import discover
from opforge.errors import BuildError, OpforgeError

_Stamp = dict[str, tuple[int, int, int] | None]  # of files and folders


class Watched:
    """The public function of an op folder, as the folder is at each call. Threads may share it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._function: Callable[..., Any]
        self._error: OpforgeError | None = None
        self._stamp: _Stamp = {}
        self._reload()
        if self._error is not None:
            raise self._error

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Call the newest version."""
        if torch.compiler.is_compiling():
            return self._function(*args, **named)
        if _stamp(self._stamp) != self._stamp:
            with self._lock:
                if _stamp(self._stamp) != self._stamp:  # no other thread was faster
                    self._reload()
        if self._error is not None:
            raise self._error.with_traceback(None)
        function = self._function
        try:
            return function(*args, **named)
        except BuildError as error:
            if function is self._function:  # it would not build the next time either
                self._error = error
            raise

    def _reload(self) -> None:
        stamp = _stamp(_names(self._folder))  # before it is loaded: a change meanwhile is another
        try:
            function = discover.load_folder(self._folder, quiet=True).function
        except OpforgeError as error:
            self._error = error
        else:
            functools.update_wrapper(self, function, updated=())
            self._function, self._error = function, None
        self._stamp = stamp  # last: until then, other threads wait for the lock


def _names(folder: Path) -> list[str]:
    """The files that an op consists of, and the folders in which more may appear."""
    files = discover.files(folder)
    return sorted({str(folder), *(str(f.parent) for f in files), *map(str, files)})


def _stamp(names: Iterable[str]) -> _Stamp:
    """What tells that files have changed: one stat of each."""
    return {name: _of_one(name) for name in names}


def _of_one(name: str) -> tuple[int, int, int] | None:
    try:
        status = os.stat(name)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
