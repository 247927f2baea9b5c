"""Which images are meant, and the names of their results."""

from pathlib import Path

from xcit_mm.inference import ResultNames


def test_results_are_named_after_their_images():
    images = [Path(name) for name in ('x/a.jpg', 'y/b.jpg')]
    assert list(ResultNames(images)) == ['a', 'b']
    images = [Path(name) for name in ('x/a.jpg', 'x/a.png', 'y/a.jpg', 'b.jpg')]
    assert list(ResultNames(images)) == ['x_a.jpg', 'x_a.png', 'y_a.jpg', 'b']


def test_no_two_images_have_results_of_the_same_name():
    images = ['a/b.jpg', '../a/b.jpg', '/a/b.jpg', 'a_b.jpg.png', 'a_b.jpg_2.png', 'a.b', 'c/a.b']
    assert len(set(ResultNames(images))) == len(images)
