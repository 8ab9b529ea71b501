# SPDX-License-Identifier: Apache-2.0
"""When to take an op, and an example of it, which a test runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Use:
    """What the page of an op says before the details."""

    when: str
    example: str  # asserts what it shows


_GATED = (
    "Between the two products of a gated feed-forward layer. With one projection that makes gate "
    "and up side by side, pass its output alone: the halves are read in place, where `chunk` and "
    "two calls read and write them once more, and the gradient is one tensor, too. Nothing but the "
    "inputs is kept for the backward. "
)

USES = {
    "relu": Use(
        "For one relu alone PyTorch's is as good. It is here as the shortest op to read and copy, "
        "and keeps the strides of its input, so that channels_last stays.",
        """
        x = torch.randn(4, 8)
        assert torch.equal(opforge.relu(x), torch.relu(x))
        """,
    ),
    "vector_add": Use(
        "For one sum alone PyTorch's is as good. It shows broadcasting: the gradient of what was "
        "expanded is summed in a fixed order.",
        """
        x, row = torch.randn(4, 8), torch.randn(8)
        assert torch.equal(opforge.vector_add(x, row), x + row)
        """,
    ),
    "scale_bias_relu": Use(
        "After a product without a bias of its own: one pass over x in place of three. As a "
        "module: `opforge.nn.ScaleBiasReLU`.",
        """
        x, bias = torch.randn(4, 8), torch.randn(8)
        y = opforge.scale_bias_relu(x, bias, 0.5)
        torch.testing.assert_close(y, torch.relu(x * 0.5 + bias))
        """,
    ),
    "reduce_sum": Use(
        "Where the same bits are wanted every time, on whatever number of threads.",
        """
        x = torch.randn(4, 8)
        torch.testing.assert_close(opforge.reduce_sum(x, dim=1), x.sum(1))
        """,
    ),
    "cumsum": Use(
        "Running sums, the same bits every time; `torch.cumsum` promises that on a GPU in "
        "deterministic mode alone. With "
        "`exclusive=True` an element is the sum of those before it, as offsets are made from "
        "lengths; with `reverse=True` sums run from the end, as returns are from rewards. Neither "
        "takes a flip or a shift, which are copies.",
        """
        lengths = torch.tensor([3.0, 1.0, 4.0])
        assert opforge.cumsum(lengths, exclusive=True).tolist() == [0, 3, 4]
        assert opforge.cumsum(lengths, reverse=True).tolist() == [8, 5, 4]
        """,
    ),
    "softmax": Use(
        "Attention weights and router probabilities: scale, mask and softmax are one pass, and "
        "what `causal` hides is not even read. A row that a mask leaves nothing of is zeros, not "
        "NaN. As a module: `opforge.nn.Softmax`.",
        """
        scores = torch.randn(2, 4, 4)
        seen = torch.ones(4, 4, dtype=torch.bool).tril()
        right = torch.softmax((scores * 0.5).masked_fill(~seen, -torch.inf), -1)
        torch.testing.assert_close(opforge.softmax(scores, scale=0.5, causal=True), right)
        """,
    ),
    "log_softmax": Use(
        "Log probabilities, with the scale and the masks of `softmax`. For a loss take "
        "`cross_entropy`, which does not write them. As a module: `opforge.nn.LogSoftmax`.",
        """
        x = torch.randn(4, 8)
        torch.testing.assert_close(opforge.log_softmax(x), torch.log_softmax(x, -1))
        """,
    ),
    "cross_entropy": Use(
        "The loss of a classifier or a language model: the logits are read once forward and once "
        "backward, where PyTorch writes and reads their logarithms, too. `overwrite_logits=True` "
        "puts the gradient where the logits were. A label out of range is NaN on a GPU; set "
        "`OPFORGE_CHECK_LABELS=1` to be told which. As a module: `opforge.nn.CrossEntropyLoss`.",
        """
        logits, target = torch.randn(4, 8), torch.tensor([1, 7, -100, 0])
        right = torch.nn.functional.cross_entropy(logits, target)
        torch.testing.assert_close(opforge.cross_entropy(logits, target), right)
        """,
    ),
    "linear_cross_entropy": Use(
        "The last layer of a language model together with its loss: the logits of some rows at a "
        "time, never of all, so that memory no longer grows with rows times classes. What remains "
        "is mostly the float32 sum of the weight's gradients; `low_memory=True` takes half of it, "
        "for a gradient that is rounded once per chunk. `python benchmarks/memory.py` measures "
        "both. As a module: `opforge.nn.LinearCrossEntropyLoss`.",
        """
        x, weight, target = torch.randn(6, 16), torch.randn(40, 16), torch.randint(0, 40, (6,))
        right = torch.nn.functional.cross_entropy(x @ weight.T, target)
        loss = opforge.linear_cross_entropy(x, weight, target)
        torch.testing.assert_close(loss, right)
        """,
    ),
    "rms_norm": Use(
        "Before every block of a transformer of the Llama kind. With `residual` the sum of the "
        "residual stream and the norm of it are one pass, and both come back. As a module: "
        "`opforge.nn.RMSNorm`.",
        """
        x, stream, weight = torch.randn(4, 8), torch.randn(4, 8), torch.randn(8)
        y, stream = opforge.rms_norm(x, weight, residual=stream)
        right = torch.nn.functional.rms_norm(stream, (8,), weight, 1e-6)
        torch.testing.assert_close(y, right)
        """,
    ),
    "layer_norm": Use(
        "Around every block of a transformer. With `residual` the sum of the residual stream and "
        "the norm of it are one pass, and both come back. As a module: `opforge.nn.LayerNorm`.",
        """
        x, weight, bias = torch.randn(4, 8), torch.randn(8), torch.randn(8)
        right = torch.nn.functional.layer_norm(x, (8,), weight, bias)
        torch.testing.assert_close(opforge.layer_norm(x, weight, bias), right)
        """,
    ),
    "group_norm": Use(
        "Around the convolutions of diffusion models and of networks with small batches, where a "
        'silu follows: with `activation="silu"` both are one op. Images may be `channels_last`, as '
        "convolutions on tensor cores want them; the result lies as they do, and nothing is "
        "copied. As a module: `opforge.nn.GroupNorm`.",
        """
        x, weight, bias = torch.randn(2, 8, 4, 4), torch.randn(8), torch.randn(8)
        x = x.contiguous(memory_format=torch.channels_last)
        y = opforge.group_norm(x, 2, weight, bias, activation="silu")
        right = torch.nn.functional.silu(torch.nn.functional.group_norm(x, 2, weight, bias))
        torch.testing.assert_close(y, right)
        assert y.is_contiguous(memory_format=torch.channels_last)
        """,
    ),
    "swiglu": Use(
        _GATED + "This is the gate of Llama, Mistral and Qwen. As a module: `opforge.nn.SwiGLU`.",
        """
        both = torch.nn.Linear(8, 2 * 16, bias=False)(torch.randn(4, 8))
        gate, up = both.chunk(2, -1)
        y = opforge.swiglu(both)
        torch.testing.assert_close(y, torch.nn.functional.silu(gate) * up)
        """,
    ),
    "geglu": Use(
        _GATED + 'This is the gate of Gemma, with `approximate="tanh"`. As a module: '
        "`opforge.nn.GEGLU`.",
        """
        gate, up = torch.randn(4, 16), torch.randn(4, 16)
        y = opforge.geglu(gate, up, approximate="tanh")
        right = torch.nn.functional.gelu(gate, approximate="tanh") * up
        torch.testing.assert_close(y, right)
        """,
    ),
    "reglu": Use(
        _GATED + "Its gate is the cheapest of the three, and leaves zeros. As a module: "
        "`opforge.nn.ReGLU`.",
        """
        gate, up = torch.randn(4, 16), torch.randn(4, 16)
        torch.testing.assert_close(opforge.reglu(gate, up), torch.relu(gate) * up)
        """,
    ),
    "bias_gelu": Use(
        "After the first product of a feed-forward layer, made without its bias: adding it and the "
        "activation are one pass, and the backward sums the gradient of the bias while it writes "
        "that of x. As a module: `opforge.nn.BiasGELU`.",
        """
        linear = torch.nn.Linear(8, 16)
        x = torch.randn(4, 8)
        y = opforge.bias_gelu(x @ linear.weight.t(), linear.bias)
        torch.testing.assert_close(y, torch.nn.functional.gelu(linear(x)))
        """,
    ),
    "dropout": Use(
        "In place of `torch.nn.functional.dropout`, to keep 8 bytes for the backward, not a mask "
        "of a byte or more per element, and to get the same mask from the same seed on every "
        "device. "
        "As a module: `opforge.nn.Dropout`.",
        """
        x = torch.ones(1000)
        torch.manual_seed(0)
        y = opforge.dropout(x, p=0.25)
        assert set(y.tolist()) == {0.0, float(torch.tensor(1 / 0.75))}
        torch.manual_seed(0)
        assert torch.equal(opforge.dropout(x, p=0.25), y)
        """,
    ),
    "bias_dropout_residual": Use(
        "At the end of a block of a transformer: after the last product, made without its bias. "
        "Three passes become one, no mask is kept, and the gradient of the residual is that of the "
        "output itself, without a copy.",
        """
        x, bias, residual = torch.randn(4, 8), torch.randn(8), torch.randn(4, 8)
        y = opforge.bias_dropout_residual(x, bias, residual, p=0.1, training=False)
        torch.testing.assert_close(y, residual + (x + bias))
        """,
    ),
    "rope": Use(
        "On queries and keys as they come out of their projection, also as slices of a packed one: "
        "nothing is transposed or made contiguous. Grouped heads, a rotary dim smaller than the "
        "head's, positions of packed sequences and of a cache are all the same call. "
        "`opforge.nn.RotaryEmbedding` holds the tables.",
        """
        rotary = opforge.nn.RotaryEmbedding(64, max_positions=128)
        qkv = torch.randn(2, 10, 8 + 2 + 2, 64)  # batch, seq, heads, dim
        q, k = opforge.rope(qkv[:, :, :8], qkv[:, :, 8:10], rotary.cos, rotary.sin)
        assert torch.equal(q[:, 0], qkv[:, 0, :8])  # position 0: not turned
        token = torch.randn(2, 1, 8, 64)  # the next one of each sequence, with a cache
        q, _ = rotary(token, positions=torch.tensor([[10], [7]]))
        """,
    ),
    "stencil2d": Use(
        "Steps of a simulation on a grid, blurs and edges in images: one small stencil for all "
        "planes, whose weights may be learned. `conv2d` is for many channels; it knows no boundary "
        "but zeros without a padded copy of the image.",
        """
        heat = torch.zeros(5, 5)
        heat[0, 2] = 1.0
        laplace = torch.tensor([-4.0, 1.0, 1.0, 1.0, 1.0])  # centre, up, down, left, right
        heat = heat + 0.1 * opforge.stencil2d(heat, laplace, boundary="periodic")
        torch.testing.assert_close(heat.sum(), torch.tensor(1.0))  # none is lost
        torch.testing.assert_close(heat[4, 2], torch.tensor(0.1))  # from the other side
        """,
    ),
}
