"""Times of recurrent, convolutional and attention layers against the length of the sequence."""
