"""Features and random changes of signals: log-mel frames, masks and warps of frames, crops of pictures."""
