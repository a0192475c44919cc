"""A picture to a sentence."""

from s2sjax.tasks.captioning.frame_pictures import FramePictures
from s2sjax.tasks.captioning.settings import CaptionData, CaptionEvaluate, CaptionModel, PictureChanges
from s2sjax.tasks.captioning.task import Captioning, CaptioningTask
