"""Losses of brasa-array's tests as MLX computes them: prints the numbers of `losses_are_those_of_mlx`.

pip install 'mlx[cpu]==0.32.*'
"""

import mlx.core as mx
import mlx.nn as nn

x = mx.array([[1.0, -2.0, 0.5], [3.0, 0.0, -1.0]])
y = mx.array([[0.0, 1.0, 0.25], [1.0, 0.5, 0.75]])
losses = nn.losses
print("cross_entropy", losses.cross_entropy(x, mx.array([2, 0]), reduction="mean").item())
print("binary_cross_entropy", losses.binary_cross_entropy(x, y, reduction="mean").item())
print("mean_squared_error", losses.mse_loss(x, y).item())
print("mean_absolute_error", losses.l1_loss(x, y).item())
print("huber", losses.huber_loss(x, y, delta=1.0, reduction="mean").item())
logs = [array - mx.logsumexp(array, 1, keepdims=True) for array in (x, y)]
print("kl_divergence", losses.kl_div_loss(*logs, axis=1, reduction="mean").item())
