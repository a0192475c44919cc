"""Features and random changes of signals: log-mel frames, masks and warps of frames, crops of pictures."""

__all__ = ["frame_augmentation", "image_augmentation", "mel_features"]
