"""The report of one or several runs: one HTML file that needs no network.

subjects.py    which evaluation of each run is reported
contents.py    what the report says, as plain values
examples.py    the outputs: scores, edit alignments, quality by source length
views.py       attention and search trees, which need the model
page.py        the values and the program that shows them, as one HTML file
*.js, *.css    the program: no library, and text from data is only ever shown as text
"""
