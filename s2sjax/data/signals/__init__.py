"""Frames and recordings.

signal_examples      frames and their labels
audio                recordings and their log-mel features
spoken_digits        corpora of recordings
spoken_text          recordings with free text, in the windows and with the features of Whisper
frame_signals        recordings or vectors in tables
handwritten_digits   corpora of pen strokes and scanned digits
"""

from s2sjax.data.signals.signal_examples import (
    DIGITS,
    SPLITS,
    Signal,
    Signals,
    Strings,
    check_labels,
    digest,
    fingerprint,
    join_with_gaps,
    numbers_of,
    split_by_line,
)
