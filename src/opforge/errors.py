# SPDX-License-Identifier: Apache-2.0
"""The exceptions opforge raises beside the usual TypeError and ValueError for bad arguments."""

from __future__ import annotations


class OpforgeError(RuntimeError):
    """Base of every error that opforge itself raises."""


class RecordError(OpforgeError):
    """An op folder or its record is malformed."""


class ToolchainError(OpforgeError):
    """A compiler is missing, or does not fit this torch."""


class MissingPackage(OpforgeError):
    """A package of one of opforge's extras is needed and not installed."""


class BuildError(OpforgeError):
    """A compile or link step failed."""


class CacheError(OpforgeError):
    """The build cache cannot be used as it is."""


class KernelUnavailable(OpforgeError):
    """No usable kernel for a tensor's device."""


class NotSimulated(OpforgeError):
    """A kernel uses something that the simulator does not have."""


class SimulationError(OpforgeError):
    """The simulator found faults in a kernel."""


class ProfileError(OpforgeError):
    """An op cannot be profiled as asked, or the profiler failed."""


class SettingError(OpforgeError, ValueError):
    """An environment variable has a value that makes no sense."""
