"""Models of other libraries, in and out: weights and configurations of Hugging Face folders.

formats             the models that can be imported and exported, and what an import keeps for the export
load_weights        the weights of a folder as parameters of s2sjax
load_encoder        those of a BERT or a RoBERTa, as parameters of pre-training
language_models     those of a GPT-2, as parameters of a language model, and back
load_whisper        those of a Whisper, as parameters of transcription
dump_weights        parameters of s2sjax as the weights of a folder
dump_encoder        those of an encoder with its output layer, as a BERT or a RoBERTa
dump_whisper        those of transcription, as a Whisper
correspondence      one parameter and the tensors that it is made of, in both directions
safetensors_files   reads and writes safetensors, one file or several
ctranslate2_format  writes a Transformer as a model of CTranslate2
generation          generation_config.json as search settings
families/           config.json and the names of the tensors of each family
"""

from s2sjax.interop.dump_weights import dump
from s2sjax.interop.formats import Imported, Origin, format_of, settings_of
from s2sjax.interop.load_weights import load
