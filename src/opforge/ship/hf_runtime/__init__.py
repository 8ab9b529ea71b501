# SPDX-License-Identifier: Apache-2.0
"""The part of opforge that exported kernels need to run. ``opforge build --hf`` copies it."""

from opforge.op import Backward, Build, Make, Op, PackageHeaders

__all__ = ["Backward", "Build", "Make", "Op", "PackageHeaders"]
