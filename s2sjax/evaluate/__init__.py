"""Predictions of a data split, their scores, and figures.

prediction/   decodes, scores and applies models in batches
metrics/      BLEU, chrF, error rates, significance
figures/      attention maps, learning curves, search trees
"""
