"""The report of one or several runs, or of a sweep: a self-contained HTML file.

subjects.py    chooses the evaluation of each run
contents.py    the contents of the report, as plain values
sweep_contents.py  those of the report of a sweep
scored_outputs.py  the outputs: scores, edit alignments, quality by source length
views.py       attention and search trees, which need the model
page.py        the HTML file: the values and the program that shows them
write.py       writes the file
static/        the program: uses no library, and shows text from data only as text; interactive/static/ has the rest
"""
