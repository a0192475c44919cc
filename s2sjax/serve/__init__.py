"""Serves a run: a page that shows output, n-best list, attention and search tree, and a small JSON API.

engine.py         the decoding thread, which batches waiting requests and schedules them fairly
served_files.py   the files that a request may name or send
api.py            the fields of requests and answers
http.py           a strict parser of HTTP/1.1 requests
server.py         the HTTP server: checks and answers requests
"""
