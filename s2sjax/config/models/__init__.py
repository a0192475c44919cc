"""Settings of the models, and of what an encoder offers and a decoder requires."""
