"""Public data sets: a table of them, their download, and the folder they are kept in.

folder.py     the folder, $S2SJAX_DATA, and paths data:NAME/FILE
table.py      the data sets, read from sets.json: addresses, hashes, licences, citations
download.py   one file from several addresses: resumed, retried, verified
digests.py    hashes of files and of their contents
convert.py    upstream files to the files of a set, as functions of bytes
store.py      gets and checks the files of a set
progress.py   progress bars, or plain lines without a terminal

It imports neither JAX nor NumPy.
"""
