"""The files that predictions are written to."""

import cv2
import numpy as np
import pytest

from xcit_mm_runtime.files import write_png
from xcit_mm_runtime.results import label_type


@pytest.mark.parametrize('classes, dtype', [(256, np.uint8), (257, np.uint16), (847, np.uint16)])
def test_labels_of_any_number_of_classes_are_written(classes, dtype, tmp_path):
    labels = np.array([[0, 1, classes // 2], [classes - 2, classes - 1, 0]])
    path = tmp_path / 'labels.png'
    write_png(path, labels.astype(label_type(classes)))
    written = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
    assert written.dtype == dtype and written.tolist() == labels.tolist()
