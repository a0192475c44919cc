"""Data sheets of chips, and the bandwidth of a mesh axis on them."""

from typing import NamedTuple

from s2sjax.errors import UserError, nearest

GB, TERA = 1e9, 1e12


class Chip(NamedTuple):
    bf16: float
    """peak FLOP/s, dense"""
    float32: float
    """peak FLOP/s of float32 products with the default precision of JAX: TF32 on a GPU, bf16 passes on a TPU"""
    memory: float
    """memory in bytes"""
    bandwidth: float
    """memory bandwidth in bytes/s"""
    link: float
    """bandwidth to the neighbours along one axis, in bytes/s in one direction"""
    domain: int
    """number of chips connected by such links: a node of GPUs, a pod of TPUs"""
    network: float
    """bandwidth beyond the domain, in bytes/s per chip"""

    def axis(self, stride: int, size: int) -> float:
        """The bandwidth in bytes/s of a collective over `size` chips that are `stride` apart.

        Beyond a domain, each of its chips on the axis sends its part through its own network link.
        """
        if stride * size <= self.domain:
            return self.link
        return min(self.link, self.network * max(1, self.domain // stride))


# NVIDIA: data sheets of H200, H100 and A100, all SXM, without sparsity. They give the sum of both directions of NVLink
# (900 and 600 GB/s). Network: DGX H200 and H100 have 400 Gb/s per GPU, DGX A100 200 Gb/s.
# TPU: cloud.google.com/tpu/docs/v4, v5e, v5p, v6e. They give the sum of both directions and all axes of the torus
# (v5e 400, v5p 1200, v6e 800 GB/s); v4 has six links of 50 GB/s (Jouppi et al. 2023, arXiv:2304.01433).
# Data center network: v5e 6.4 Tb/s per 256 chips, v5p 50 Gb/s per chip, v6e 25.6 Tb/s per 256 chips; v4 is not
# documented and assumed to equal v5e.
CHIPS = {
    "H200": Chip(989 * TERA, 494 * TERA, 141 * GB, 4800 * GB, 450 * GB, 8, 50 * GB),
    "H100": Chip(989 * TERA, 494 * TERA, 80 * GB, 3350 * GB, 450 * GB, 8, 50 * GB),
    "A100": Chip(312 * TERA, 156 * TERA, 80 * GB, 2039 * GB, 300 * GB, 8, 25 * GB),
    "v4": Chip(275 * TERA, 275 * TERA, 32 * 2**30, 1200 * GB, 100 * GB, 4096, 3.1 * GB),
    "v5e": Chip(197 * TERA, 197 * TERA, 16 * GB, 819 * GB, 100 * GB, 256, 3.1 * GB),
    "v5p": Chip(459 * TERA, 459 * TERA, 95 * GB, 2765 * GB, 200 * GB, 8960, 6.25 * GB),
    "v6e": Chip(918 * TERA, 918 * TERA, 32 * GB, 1638 * GB, 200 * GB, 256, 12.5 * GB),
}


def find(name: str) -> tuple[str, Chip]:
    """Finds a chip by name, ignoring case: h200 is H200."""
    known = {chip.lower(): chip for chip in CHIPS}
    if name.lower() not in known:
        meant = known[nearest(name.lower(), list(known))]
        raise UserError(f"there is no chip {name!r}: did you mean {meant!r}? ({', '.join(CHIPS)})")
    return known[name.lower()], CHIPS[known[name.lower()]]
