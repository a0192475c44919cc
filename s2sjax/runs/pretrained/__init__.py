"""Pretrained models of Hugging Face as runs: import of a folder, and export of a run.

importer        the interface of importers and exporters
import_run      reads a folder with the importer of its kind of model, and writes a run folder
translation     the importer of encoder-decoders, and their export
encoder         the importer of BERT and RoBERTa, and the export of runs that start from one
language_model  the importer of GPT-2, and its export
whisper         the importer of Whisper, and its export
original        what an export needs to restore the original bit for bit
export_run      writes a run as a folder that transformers, CTranslate2 or PEFT load

A run that was imported is an ordinary run without training data: it decodes, scores, is evaluated on files, served, and
is the `init` of others. Its vocabularies keep the original files, so that a run that was fine-tuned from it can be
exported as well. See docs/pretrained.md.
"""

from s2sjax.runs.pretrained.export_run import export
from s2sjax.runs.pretrained.import_run import import_pretrained
