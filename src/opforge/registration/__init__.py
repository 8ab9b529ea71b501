# SPDX-License-Identifier: Apache-2.0
"""Makes a record an operator of torch: schema, fake, autograd, autocast, vmap, call paths."""
