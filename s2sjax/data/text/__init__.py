"""Text to ids and back.

vocabulary              words, characters and subwords
subword_sampling        random segmentation: BPE dropout and unigram sampling
text_streams            a long text as parallel streams of segments
pretrained              vocabularies of pretrained models, with the ids of s2sjax
pretrained_families     what the files of each family of pretrained models say about its tokenizer
pretrained_whisper      the special tokens of Whisper
pretrained_tokenizers   tokenizers of other libraries behind one interface
"""

from s2sjax.data.text.pretrained import PretrainedVocabulary
from s2sjax.data.text.vocabulary import (
    NORMALIZE,
    AnyVocabulary,
    Size,
    Subwords,
    Vocabulary,
    build,
    build_both,
    build_from_counts,
    count_pieces,
    load,
    load_both,
    mark,
    normalized,
    rows_in,
    sample,
    sampled_places,
    with_tag,
)
