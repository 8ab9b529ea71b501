# SPDX-License-Identifier: Apache-2.0
"""Registers records with torch: schema, fake kernel, autograd, autocast, vmap, call paths."""
