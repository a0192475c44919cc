"""The families of models that s2sjax imports and exports: their config.json and the names of their tensors.

family              what the families share
bart                Marian, BART, mBART, M2M-100 (NLLB), Pegasus, Blenderbot
t5                  T5, FLAN-T5, mT5, ByT5, UMT5
bert                BERT, RoBERTa, XLM-RoBERTa
whisper             Whisper
"""
