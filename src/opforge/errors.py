# SPDX-License-Identifier: Apache-2.0
"""The exceptions of opforge. Bad arguments of an op raise TypeError or ValueError."""

from __future__ import annotations


class OpforgeError(RuntimeError):
    """Base class of all exceptions of opforge."""


class RecordError(OpforgeError):
    """An op folder or its record is malformed."""


class NewError(OpforgeError):
    """``opforge new`` cannot write the folder that was asked for."""


class ToolchainError(OpforgeError):
    """A compiler is missing or does not work with this torch."""


class MissingPackage(OpforgeError):
    """A command needs a package of one of opforge's extras, which is not installed."""


class BuildError(OpforgeError):
    """A compile or link step failed."""


class CacheError(OpforgeError):
    """The build cache cannot be used, for example because others can write to it."""


class KernelUnavailable(OpforgeError):
    """There is no usable kernel for the device of a tensor."""


class NotSimulated(OpforgeError):
    """A kernel uses a feature that the simulator does not support."""


class SimulationError(OpforgeError):
    """The simulator found faults in a kernel."""


class ProfileError(OpforgeError):
    """An op cannot be profiled this way, or the profiler failed."""


class SettingError(OpforgeError, ValueError):
    """An environment variable has an invalid value."""
