"""The report of one or several runs, or of a sweep: a self-contained HTML file.

subjects.py    chooses the evaluation of each run
contents.py    the contents of the report, as plain values
scored_outputs.py  the outputs: scores, edit alignments, quality by source length
views.py       attention and search trees, which need the model
page.py        the HTML file: the values and the program that shows them
write.py       writes the file
sweep_report.py    the contents of the report of a sweep, and writes it
static/        the program: uses no library, and shows text from data only as text
"""
