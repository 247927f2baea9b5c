"""Which images are meant, and the names of their results."""

import os
from pathlib import Path

import pytest

from xcit_mm_runtime.errors import UserError
from xcit_mm_runtime.inputs import ResultNames, find_images, find_sources, unsupported_files


def test_results_are_named_after_their_images():
    images = [Path(name) for name in ('x/a.jpg', 'y/b.jpg')]
    assert list(ResultNames(images)) == ['a', 'b']
    images = [Path(name) for name in ('x/a.jpg', 'x/a.png', 'y/a.jpg', 'b.jpg')]
    assert list(ResultNames(images)) == ['x_a.jpg', 'x_a.png', 'y_a.jpg', 'b']


def test_no_two_images_have_results_of_the_same_name():
    images = ['a/b.jpg', '../a/b.jpg', '/a/b.jpg', 'a_b.jpg.png', 'a_b.jpg_2.png', 'a.b', 'c/a.b']
    assert len(set(ResultNames(images))) == len(images)


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Four images and other files below the current folder."""
    monkeypatch.chdir(tmp_path)
    for name in ('a-b/1.jpg', 'a/2.JPG', 'a/1.png', 'c.tif', 'a/notes.txt', 'a/clip.mp4'):
        Path('photos', name).parent.mkdir(parents=True, exist_ok=True)
        Path('photos', name).write_bytes(b'')
    return ['photos/a/1.png', 'photos/a/2.JPG', 'photos/a-b/1.jpg', 'photos/c.tif']


def test_folders_and_globs_name_images_in_a_fixed_order(photos):
    assert find_sources(['photos']) == find_sources(['./photos/']) == photos
    assert find_sources([os.path.abspath('photos')]) == [os.path.abspath(name) for name in photos]
    assert find_sources(['.']) == photos
    os.symlink('photos', 'linked')  # links to folders are followed where the user names them
    assert find_sources(['.']) == photos and len(find_sources(['linked'])) == 4
    assert find_sources(['photos/**/*.[jt][pi]*']) == [photos[2], photos[3]]
    assert find_sources(['photos/*']) == ['photos/c.tif']
    assert find_sources(['photos/c.tif', 'photos', './photos/c.tif']) == [photos[3], *photos[:3]]
    assert find_images(['photos']) == [Path(name) for name in photos]
    assert list(unsupported_files(['photos', 'photos/c.tif'])) == ['photos/a/clip.mp4']
    for nothing in ('photos/a/*.bmp', 'none.jpg'):
        with pytest.raises(UserError, match='names no image'):
            find_sources([nothing])


def test_a_list_names_files_one_per_line_relative_to_the_current_folder(photos, tmp_path):
    lists = tmp_path / 'lists'
    lists.mkdir()

    def read(content):
        (lists / 'files.txt').write_bytes(content)
        return find_sources(['@lists/files.txt'])

    kept = ['photos/c.tif', 'none.jpg', 'photos/a/clip.mp4', 'photos/[1].jpg']
    assert read('\n'.join(kept).encode()) == kept
    # As editors on Windows write it, with blank lines and duplicates
    content = '\ufeff./photos/c.tif\r\n\r\n \r\nphotos//a/1.png\r\nphotos/c.tif\r\n'
    assert read(content.encode()) == ['photos/c.tif', 'photos/a/1.png']
    Path(os.fsdecode(b'photos/\xff.jpg')).write_bytes(b'')
    (name,) = read(b'photos/\xff.jpg\n')
    assert os.path.exists(name)
    assert find_sources(['photos/a', '@lists/files.txt']) == [*photos[:2], name]
    for content, message in {
        b'': 'names no image',
        b'a.jpg\nb.jpg\n': 'begins with files that do not exist, such as a.jpg. .* relative to',
        b'photos/c.tif\0photos/a/1.png\0': 'is not a list of files',
    }.items():
        with pytest.raises(UserError, match=message):
            read(content)
    with pytest.raises(UserError, match=r'none\.txt cannot be read: No such file'):
        find_sources(['@none.txt'])
    Path('@1.jpg').write_bytes(b'')
    assert find_sources(['@1.jpg']) == ['@1.jpg']
