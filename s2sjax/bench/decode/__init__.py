"""Times of search: `s2sjax bench decode`.

decode_speed.py     a search, here and in other libraries
decode_peers.py     the same model in transformers and CTranslate2
decode_growth.py    search against the number of tokens, with a cache and with recurrences
"""
