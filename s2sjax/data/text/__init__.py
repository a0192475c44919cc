"""Text to ids and back.

vocabulary         words, characters and subwords
subword_sampling   random segmentation: BPE dropout and unigram sampling
text_streams       a long text as parallel streams of segments
"""

from s2sjax.data.text.vocabulary import (
    NORMALIZE,
    AnyVocabulary,
    Size,
    Subwords,
    Vocabulary,
    build,
    build_both,
    load,
    load_both,
    mark,
    normalized,
    rows_in,
    sample,
    with_tag,
)
