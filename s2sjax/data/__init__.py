"""The data pipeline: corpora -> text or signals -> columns -> batches.

corpora/      the examples of a corpus, split by split
text/         text to ids and back
signals/      frames, recordings, handwritten digits
batching/     columns of examples, and the batch at step t
examples      a source text and its target texts; splits by hash
pairs         text pairs as columns, raw or prepared
assets        labels and statistics of the training data
prepare       encodes a corpus once, into a folder
beam_prepare  the same with Apache Beam, on one machine or many
beam_runner   calls functions on the workers of Beam
data_notes    notes on suspicious data; examples that two splits share
"""

from s2sjax.data.examples import Example, Split, in_share, split_of
