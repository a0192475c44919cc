"""Live input for a run: a page that shows output, n-best list, attention and search tree, and a small JSON API.

engine.py    one thread that decodes; requests that wait are joined to batches, and take turns
files.py     which files a request may name or send
api.py       what a request may ask, and what it gets
http.py      requests of HTTP/1.1, read strictly
server.py    which requests are answered at all, and how
"""
