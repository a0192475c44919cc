"""Benchmarks against other libraries: `s2sjax bench NAME`.

command.py           the command and its options
train_speed.py       training steps; torch_peers.py has the same models in PyTorch
pretrained_models.py pretrained models at their sizes, here and in transformers
sweep_speed.py       training steps alone, and together in a sweep
data_speed.py        the input pipeline
serve_speed.py       `s2sjax serve`; http_clients.py has its clients
decode/              search, here and in other libraries, and against the number of tokens
layers/              times of single layers; scaling.py fits their growth
peers.py             alternating measurements of several libraries
timing.py            times, compile times and the ceilings of a device
result_files.py      tables, CSV and JSON
"""
