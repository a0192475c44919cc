"""Models of chains with exact inference, and n-grams.

ctc                    connectionist temporal classification
ctc_prefix_search      the best labelling under CTC, with an optional n-gram model
crf                    linear-chain conditional random fields
hmm                    hidden Markov models
kalman                 linear dynamical systems
ngram_language_model   n-gram models of labels
"""

__all__ = ["crf", "ctc", "ctc_prefix_search", "hmm", "kalman", "ngram_language_model"]
