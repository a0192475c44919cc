"""Live input for a run: a page that shows output, n-best list, attention and search tree, and a small JSON API.

engine.py    one thread that decodes; requests that wait are joined to one batch
api.py       what a request may ask, and what it gets
server.py    HTTP: which requests are answered at all, and how
"""
