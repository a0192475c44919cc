"""One file for each family of encoder-decoders."""
