"""Checkpoints: saved completely or not at all, and verified when they are read.

manager        which are kept, which is the best, which are damaged
store          writes them completely or not at all, and verifies what is read
integrity      what counts as damage
fingerprints   checksums of sharded arrays
folders        which folders are complete checkpoints, also in object storage
fast_reader    reads a checkpoint without Orbax
transfer       parameters of another run as the start of this one
"""

from s2sjax.training.checkpoints.manager import Checkpoints
