"""Converts folders of other formats to COCO's, with checks on the way."""

from .to_coco import Converted, convert_folder, find_format

__all__ = ['Converted', 'convert_folder', 'find_format']
