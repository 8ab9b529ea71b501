# SPDX-License-Identifier: Apache-2.0
"""``opforge new`` writes an op folder that works; ``opforge next`` says what to do with one."""
