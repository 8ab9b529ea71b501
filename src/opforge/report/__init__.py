# SPDX-License-Identifier: Apache-2.0
"""``opforge report``: makes an HTML page from results of ``opforge bench`` and ``check``."""
