"""XLA computes a wrong product of two matrices on a mesh of 2 x 2 x 2 devices. Prints both products of a row.

    python docs/xla_three_axes.py

The rows of x, [16, 8], are split over two axes, a and b, its columns over c. The columns of w, [8, 8], are split over
b, the second axis of the rows, and the product is wanted as x is: rows over a and b, columns over c.

    x  (a, b), c        w  c, b        x @ w  (a, b), c

The partitioner exchanges the rows of devices by a collective-permute, so that b comes before a, and does not exchange
them back: half of the devices hold the rows of others. With the rows split over b and a, in this order, the product is
right; on 2 x 4 x 2 and 2 x 2 x 4 devices it is right in both orders, on 4 x 2 x 2 it is wrong too. Nothing is
differentiated, and Shardy and GSPMD give the same. In a loop, such as a scan over time, the compiler may choose such
shardings by itself if w is split over b. Found in JAX 0.10.2 and 0.12.0.1, on CPU devices.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec


def product(rows: tuple[str, str]) -> np.ndarray:
    """x @ w on 2 x 2 x 2 devices, with the rows split over these axes."""
    mesh = jax.make_mesh((2, 2, 2), ("a", "b", "c"), axis_types=(AxisType.Auto,) * 3)
    over = lambda *axes: NamedSharding(mesh, PartitionSpec(*axes))
    x, w = jax.device_put(X, over(rows, "c")), jax.device_put(W, over("c", "b"))
    return np.asarray(jax.jit(jnp.matmul, out_shardings=over(rows, "c"))(x, w))


X = np.arange(16 * 8, dtype=np.float32).reshape(16, 8)
W = np.eye(8, dtype=np.float32)

if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", 8)
    print("JAX", jax.__version__)
    for rows in (("a", "b"), ("b", "a")):
        wrong = np.flatnonzero((product(rows) != X @ W).any(1))
        print(f"rows over {', '.join(rows)}:", f"wrong in the rows {wrong.tolist()}" if len(wrong) else "right")
