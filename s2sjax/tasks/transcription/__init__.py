"""Frames to labels, by an attention decoder."""

from s2sjax.tasks.transcription.settings import SpellerModel
from s2sjax.tasks.transcription.task import Transcription, TranscriptionTask
