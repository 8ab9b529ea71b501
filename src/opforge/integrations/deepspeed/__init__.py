# SPDX-License-Identifier: Apache-2.0
"""Ops as builders of DeepSpeed: see docs/deepspeed.md.

``builder(op)`` makes an ``OpBuilder`` class. ``register(*ops)`` makes them known to DeepSpeed.
``export_sources(op, folder)`` writes sources that DeepSpeed compiles without opforge.

Importing this module does not import deepspeed.
"""

from __future__ import annotations

from opforge.integrations.deepspeed.builder import builder
from opforge.integrations.deepspeed.export import export_sources
from opforge.integrations.deepspeed.register import register

__all__ = ["builder", "export_sources", "register"]
