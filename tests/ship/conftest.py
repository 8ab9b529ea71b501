# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # huggingface_hub reads it when it is imported
