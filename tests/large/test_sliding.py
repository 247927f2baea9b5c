"""Sliding windows cover the image, and boxes are merged at the seams."""

import itertools

import pytest
import torch

from xcit_mm.large.sliding import merge_boxes, starts


def test_windows_cover_everything_and_end_at_the_border():
    for length, window, overlap in [(100, 30, 10), (30, 30, 10), (10, 30, 0), (91, 30, 0)]:
        begins = starts(length, window, overlap)
        assert begins[0] == 0 and begins[-1] == max(length - window, 0)
        assert all(b - a <= window - overlap for a, b in itertools.pairwise(begins))
    with pytest.raises(ValueError, match='overlap must be less'):
        starts(100, 30, 30)


def test_boxes_of_one_object_are_merged_at_the_seams():
    boxes = torch.tensor(
        [
            [90.0, 10, 130, 50],  # an object on a seam: its right part
            [70, 10, 110, 50],  # its left part, from another window
            [70, 10, 110, 50],  # another class
            [75, 10, 105, 50],  # the same window as the first: that window's own NMS kept both
            [300, 300, 320, 320],  # far away
        ]
    )
    scores = torch.tensor([0.9, 0.8, 0.7, 0.6, 0.95])
    labels = torch.tensor([1, 1, 2, 1, 1])
    sources = torch.tensor([0, 1, 1, 0, 0])
    found = merge_boxes(boxes, scores, labels, sources)
    assert found['scores'].tolist() == pytest.approx([0.95, 0.9, 0.7, 0.6])
    assert found['boxes'][1].tolist() == [70, 10, 130, 50]
    assert found['labels'].tolist() == [1, 1, 2, 1]
    nothing = merge_boxes(boxes[:0], scores[:0], labels[:0], sources[:0])
    assert nothing['boxes'].shape == (0, 4)
