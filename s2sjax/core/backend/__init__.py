"""Choices that depend on the device.

device           unrolling, kernels, layouts and compiler options for each device
matmul           products in the compute type
quantization     int8 and bfloat16 parameters
remat            which intermediate results the backward pass recomputes
batch_sharding   keeps the rows of a batch split over devices
"""

__all__ = ["batch_sharding", "device", "matmul", "quantization", "remat"]
