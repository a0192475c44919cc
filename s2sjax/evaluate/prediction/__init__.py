"""Predictions for lists of examples: batches of few shapes, decoded, scored or sampled."""
