"""Files are complete or missing; engine/test_checkpoint.py tests a full disk."""

import cv2
import numpy as np
import pytest

from xcit_mm_runtime.files import check_writable, replacing, write_atomically, write_png
from xcit_mm_runtime.results import label_type


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_complete_file_appears_with_its_folder(tmp_path):
    path = tmp_path / 'new' / 'file.txt'
    with replacing(path) as unfinished:
        unfinished.write_text('new')
        assert not path.exists()
    assert path.read_text() == 'new' and names(path.parent) == ['file.txt']
    write_atomically(path, 'é')
    assert path.read_bytes() == 'é'.encode()


@pytest.mark.parametrize('error', [ValueError('no'), KeyboardInterrupt()])
def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / 'file'
    write_atomically(path, b'old')
    with pytest.raises(type(error)) as raised, replacing(path) as unfinished:
        unfinished.write_text('half')
        raise error
    assert raised.value is error
    assert path.read_bytes() == b'old' and names(tmp_path) == ['file']


def test_an_error_of_another_file_keeps_its_name(tmp_path):
    with pytest.raises(FileNotFoundError) as raised, replacing(tmp_path / 'file'):
        (tmp_path / 'other').read_bytes()
    assert raised.value.filename == str(tmp_path / 'other') and names(tmp_path) == []


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / 'folder').mkdir()
    with pytest.raises(OSError) as raised:
        write_atomically(tmp_path / 'folder', b'new')
    assert raised.value.filename == str(tmp_path / 'folder') and names(tmp_path) == ['folder']


def test_a_check_changes_no_file(tmp_path):
    for name in ('file', 'file.test'):
        (tmp_path / name).write_text(name)
    check_writable(tmp_path / 'file')
    check_writable(tmp_path / 'new' / 'other')
    assert names(tmp_path) == ['file', 'file.test', 'new'] and names(tmp_path / 'new') == []
    assert (tmp_path / 'file').read_text() == 'file'
    assert (tmp_path / 'file.test').read_text() == 'file.test'


@pytest.mark.parametrize('classes, dtype', [(256, np.uint8), (257, np.uint16), (847, np.uint16)])
def test_labels_of_any_number_of_classes_are_written(classes, dtype, tmp_path):
    labels = np.array([[0, 1, classes // 2], [classes - 2, classes - 1, 0]])
    path = tmp_path / 'labels.png'
    write_png(path, labels.astype(label_type(classes)))
    written = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    assert written.dtype == dtype and written.tolist() == labels.tolist()
