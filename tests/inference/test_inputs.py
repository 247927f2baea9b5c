"""Which images are meant, and the names of their results."""

from pathlib import Path

from xcit_mm.inference import result_names


def test_results_are_named_after_their_images():
    images = [Path(name) for name in ('x/a.jpg', 'y/b.jpg')]
    assert list(result_names(images).values()) == ['a', 'b']
    images = [Path(name) for name in ('x/a.jpg', 'x/a.png', 'y/a.jpg', 'b.jpg')]
    assert list(result_names(images).values()) == ['x_a.jpg', 'x_a.png', 'y_a.jpg', 'b']


def test_no_two_images_have_results_of_the_same_name():
    images = ['a/b.jpg', '../a/b.jpg', '/a/b.jpg', 'a_b.jpg.png', 'a_b.jpg_2.png', 'a.b', 'c/a.b']
    names = result_names([Path(image) for image in images])
    assert list(names) == [Path(image) for image in images]
    assert len(set(names.values())) == len(images)
