"""Examples to batches.

columns          examples as named columns, ragged or dense
batch_plan       which rows form the batch at step t
mixtures         batches drawn from several corpora
packing          several short pairs in one row
target_subsets   a training set split into parts with few distinct target words
"""
