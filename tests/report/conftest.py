"""A browser for the pages."""

import pytest
from browser import Browser, find


@pytest.fixture(scope="module")
def browser():
    path = find()
    try:
        found = Browser(path)
    except (AssertionError, OSError) as error:
        pytest.skip(f"{path} does not start here: {error}")
    with found:
        yield found
