"""Where examples come from.

readers           the examples of a corpus, split by split
text_files        text files by line, TSV, CSV
memory_reader     examples given in memory, and their copies in a run folder
frame_reader      rows of frames, Parquet files and JSON lines
synthetic         generated examples
tfds              TensorFlow Datasets, without TensorFlow
prepared_corpus   a folder that `s2sjax prepare` has written
"""
