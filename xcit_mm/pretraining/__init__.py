"""Trains backbones on images: supervised, with distillation, and without labels by DINO."""

from .channels import LoadChannels, ScaleTo8Bit, read_channels
from .classifier import ImageClassifier, LinearClassifier, MultiScalePreprocessor
from .dino import DINO, DINOHead, dino_loss, information
from .folders import CocoObjects, INaturalist, LabeledFolder, UnlabeledFolder
from .hooks import ClassesHook, DescribeHook, DINOHook, ValidateFirstHook
from .metrics import KNNAccuracy, LinearProbe, TopKAccuracy
from .transforms import CenterImageCrop, MultiCrop, PackImage, TimmTransform

__all__ = [
    'DINO',
    'CenterImageCrop',
    'ClassesHook',
    'CocoObjects',
    'DINOHead',
    'DINOHook',
    'DescribeHook',
    'INaturalist',
    'ImageClassifier',
    'KNNAccuracy',
    'LabeledFolder',
    'LinearClassifier',
    'LinearProbe',
    'LoadChannels',
    'MultiCrop',
    'MultiScalePreprocessor',
    'PackImage',
    'ScaleTo8Bit',
    'TimmTransform',
    'TopKAccuracy',
    'UnlabeledFolder',
    'ValidateFirstHook',
    'dino_loss',
    'information',
    'read_channels',
]
