"""The decorator by which tests check the annotations of s2sjax.core: see tests/conftest.py."""

from beartype import BeartypeConf, beartype

checked = beartype(conf=BeartypeConf(is_pep484_tower=True))  # an int is a float, as type checkers have it
