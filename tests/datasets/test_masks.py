"""Masks as people have them become COCO's annotations: files, numbers, tables, polygons."""

import json
import shlex
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
from pycocotools import mask as coco_mask

from xcit_mm.datasets.convert import convert_folder, find_format
from xcit_mm.errors import UserError
from xcit_mm_runtime.coco import read_coco

from ..tiny import call
from .own_data import draw_cells, write_cells, write_values

SIZES = [(40, 50, 6), (64, 48, 12), (70, 70, 15), (300, 280, 290)]
FORMATS = {'folders': 'masks', 'named': 'masks', 'flat': 'masks', '8 bit': 'numbers',
           '16 bit': 'numbers', '24 bit': 'numbers'}  # fmt: skip


def objects_by_image(root, out):
    """name of an image -> its masks, (objects, height, width), sorted."""
    found = {}
    for path in sorted(out.glob('*.json')):
        content = read_coco(path)
        for image in content['images']:
            assert (root / image['file_name']).is_file()
            entries = [a for a in content['annotations'] if a['image_id'] == image['id']]
            for entry in entries:
                mask = coco_mask.decode(entry['segmentation']).astype(bool)
                assert entry['area'] == mask.sum()
                assert entry['bbox'] == coco_mask.toBbox(entry['segmentation']).tolist()
                found.setdefault(Path(image['file_name']).stem, []).append(mask)
    return found


@pytest.mark.parametrize('layout', FORMATS)
def test_every_layout_gives_the_same_objects(layout, tmp_path):
    sizes = SIZES[:3] if layout == '8 bit' else SIZES
    write_cells(tmp_path / 'cells', layout, sizes)
    assert find_format(tmp_path / 'cells') == FORMATS[layout]
    converted = convert_folder(tmp_path / 'cells', tmp_path / 'out', classes=['cell'])
    assert converted.classes == ['cell'] and not converted.report.errors
    found = objects_by_image(tmp_path / 'cells', tmp_path / 'out')
    for index, (width, height, count) in enumerate(sizes):
        _, numbers = draw_cells(width, height, count, index)
        expected = [numbers == n for n in np.unique(numbers[numbers > 0])]
        assert np.array_equal(np.sort(expected, axis=0), np.sort(found[f'cell_{index}'], axis=0))
        assert len(expected) == len(found[f'cell_{index}'])


def test_folders_of_splits_are_used(tmp_path):
    """As in stage1_train/ and stage1_test/ of the nuclei of the Data Science Bowl."""
    write_cells(tmp_path / 'cells/stage1_train', sizes=SIZES[:2])
    write_cells(tmp_path / 'cells/stage1_val', sizes=SIZES[2:3])
    shutil.rmtree(tmp_path / 'cells/stage1_train/cell_1/masks')
    (tmp_path / 'cells/stage1_train/cell_1/masks').mkdir()  # an image without masks is no example
    converted = convert_folder(tmp_path / 'cells', tmp_path / 'out')
    assert converted.classes == ['object']
    assert {split: row for split, row in converted.rows[0].items() if split} == {
        'train': 1, 'val': 1,
    }  # fmt: skip
    (problem,) = converted.report.problems
    assert problem.kind == 'left out: no annotations' and problem.file.endswith('cell_1.png')


def test_a_folder_of_training_images_alone_is_split(tmp_path):
    """So that converting it again leaves no file of an older split behind."""
    write_cells(tmp_path / 'cells/stage1_train', sizes=SIZES[:3] * 2)
    for _ in range(2):
        convert_folder(tmp_path / 'cells', tmp_path / 'out', overwrite=True)
        names = [
            {image['file_name'] for image in read_coco(tmp_path / f'out/{split}.json')['images']}
            for split in ('train', 'val')
        ]
        assert all(names) and not set.intersection(*names)


def test_names_of_folders_and_files_that_mean_nothing(tmp_path):
    """Capitals, hidden files of a Mac, and images that are called tests."""
    root = write_cells(tmp_path / 'cells', sizes=SIZES[:3])
    for path in sorted(root.iterdir()):
        image = next((path / 'images').iterdir())
        image.with_name(f'._{image.name}').write_bytes(b'Mac')
        (path / 'masks' / '._1.png').write_bytes(b'Mac')
        (path / 'images').rename(path / 'Images')
        (path / 'masks').rename(path / 'Masks')
        path.rename(root / f'field_test_{path.name}')
    converted = convert_folder(root, tmp_path / 'out')
    assert converted.files.keys() == {'train', 'val'} and not converted.report.problems


def test_one_image_of_a_split_does_not_hide_the_others(tmp_path):
    root = write_cells(tmp_path / 'cells', '16 bit', SIZES)
    for split, numbers in {'train': range(3), 'val': [3]}.items():
        for part in ('images', 'masks'):
            (root / split / part).mkdir(parents=True)
            for number in numbers:
                (path,) = (root / part).glob(f'cell_{number}.*')
                path.rename(root / split / part / path.name)
    assert find_format(root) == 'numbers'
    assert {s: n for s, n in convert_folder(root, tmp_path / 'out').rows[0].items() if s} == {
        'train': 3, 'val': 1,
    }  # fmt: skip


def test_numbers_after_names_need_not_be_those_of_objects(tmp_path):
    """Images cell, cell_1 and cell_2 with a label image each; then with several masks each."""
    for part in ('images', 'masks'):
        (tmp_path / part).mkdir()
        for count, name in enumerate(('cell', 'cell_1', 'cell_2'), 6):
            numbers = np.repeat(np.arange(count, dtype=np.uint8), 6)[None].repeat(36, 0)
            cv2.imwrite(str(tmp_path / part / f'{name}.png'), numbers)
    assert find_format(tmp_path) == 'numbers'
    for name in ('cell', 'cell_1', 'cell_2'):
        (tmp_path / f'masks/{name}.png').unlink()
        for end in ('_0', '-cell_7'):
            image = cv2.imread(str(tmp_path / f'images/{name}.png'))
            mask = np.zeros(image.shape[:2], np.uint8)
            mask[: 9 + len(end)] = 255
            cv2.imwrite(str(tmp_path / f'masks/{name}{end}.png'), mask)
    assert find_format(tmp_path) == 'masks'
    converted = convert_folder(tmp_path, tmp_path / 'out')
    assert sum(row for key, row in converted.rows[1].items() if key) == 6
    assert not any('left out' in problem.kind for problem in converted.report.problems)


def test_what_is_wrong_with_masks_is_listed(tmp_path):
    root = write_cells(tmp_path / 'cells', sizes=SIZES[:2])
    masks = root / 'cell_0/masks'
    first = cv2.imread(str(masks / '001.png'), cv2.IMREAD_UNCHANGED)
    cv2.imwrite(str(masks / 'other_size.png'), np.full((9, 9), 255, np.uint8))
    cv2.imwrite(str(masks / 'black.png'), np.zeros_like(first))
    cv2.imwrite(str(masks / 'all.png'), np.full_like(first, 255))
    shutil.copy(masks / '001.png', masks / 'twice.png')
    (masks / 'damaged.png').write_bytes((masks / '001.png').read_bytes()[:40])
    report = convert_folder(root, tmp_path / 'out').report
    found = {problem.kind: problem.file for problem in report.problems}
    assert Path(found['left out: mask of another size']).name == 'other_size.png'
    assert Path(found['left out: empty mask']).name == 'black.png'
    assert Path(found['left out: mask unreadable']).name == 'damaged.png'
    assert 'left out: duplicate' in found and 'changed: masks overlap' in found


@pytest.mark.parametrize('with_image', [True, False])
def test_a_table_names_the_classes(with_image, tmp_path):
    root = write_cells(tmp_path / 'cells', '16 bit', SIZES[:2])
    lines = ['image,id,class' if with_image else 'Label,Category']
    for index, (width, height, count) in enumerate(SIZES[:2]):
        numbers = draw_cells(width, height, count, index)[1]
        for n in np.unique(numbers[numbers > 0]):
            name = 'round' if (n + index * with_image) % 2 else 'long'
            lines.append(f'cell_{index}.png,{n},{name}' if with_image else f'{n},{name}')
    (root / 'cells.csv').write_text('\n'.join(lines[:-1]))  # the last number of all has no class
    converted = convert_folder(root, tmp_path / 'out')
    assert converted.classes == ['long', 'round']
    assert [p.kind for p in converted.report.problems] == ['left out: unknown class'] * 1
    counts = {row['']: sum(v for k, v in row.items() if k) for row in converted.rows}
    total = sum(len(np.unique(draw_cells(*size, i)[1])) - 1 for i, size in enumerate(SIZES[:2]))
    assert counts['long'] + counts['round'] == total - 1 and min(counts.values()) > 1


def test_a_table_of_a_spreadsheet_is_for_its_images_alone(tmp_path):
    """Separated by semicolons, with numbers such as 1.0, and no rows for image 10."""
    root = write_cells(tmp_path / 'cells', '16 bit', SIZES[:2])
    for part in ('images', 'masks'):
        (path,) = (root / part).glob('cell_0.*')
        path.rename(path.with_stem('cell_10'))
    numbers = [n for n in np.unique(draw_cells(*SIZES[1], 1)[1]) if n]
    lines = ['image;id;class', *(f'cell_1.png;{n}.0;round' for n in numbers)]
    (root / 'cells.csv').write_text('\n'.join(lines))
    converted = convert_folder(root, tmp_path / 'out')
    assert converted.classes == ['round']
    left_out = [p for p in converted.report.problems if p.kind == 'left out: unknown class']
    assert len(left_out) == len(np.unique(draw_cells(*SIZES[0], 0)[1])) - 1
    assert {Path(p.file).stem for p in left_out} == {'cell_10'}


def test_labelme_files_in_a_folder_of_their_own(tmp_path):
    (tmp_path / 'data/images').mkdir(parents=True)
    (tmp_path / 'data/json').mkdir()
    cv2.imwrite(str(tmp_path / 'data/images/a.png'), np.zeros((60, 80, 3), np.uint8))
    cv2.imwrite(str(tmp_path / 'b.png'), np.zeros((60, 80, 3), np.uint8))
    corners = [[5, 5], [25, 5], [25, 25], [5, 25]]
    for name, path in (('a', '../images/a.png'), ('b', '../../b.png')):
        shapes = [{'label': 'leaf', 'points': corners, 'shape_type': 'rectangle'}]
        content = {'shapes': shapes, 'imagePath': path}
        (tmp_path / f'data/json/{name}.json').write_text(json.dumps(content))
    converted = convert_folder(tmp_path / 'data', tmp_path / 'out')
    # An image outside of the folder is not read.
    assert [p.kind for p in converted.report.problems] == ['left out: image missing']
    content = read_coco(tmp_path / 'out/train.json')
    (image,) = content['images']
    assert image['file_name'] == 'images/a.png'
    # Rectangles alone are boxes.
    assert [one.get('segmentation', one['bbox']) for one in content['annotations']] == [
        [5, 5, 20, 20]
    ]


def test_labelme_files_are_read(tmp_path):
    cv2.imwrite(str(tmp_path / 'a.png'), np.zeros((60, 80, 3), np.uint8))
    cv2.imwrite(str(tmp_path / 'b.jpg'), np.zeros((60, 80, 3), np.uint8))
    shapes = [
        {'label': 'leaf', 'points': [[5, 5], [25, 5], [5, 25]], 'shape_type': 'polygon'},
        {'label': 'leaf', 'points': [[30, 10], [50, 30]], 'shape_type': 'rectangle'},
        {'label': 'stem', 'points': [[60, 40], [60, 50]], 'shape_type': 'circle'},
        {'label': 'leaf', 'points': [[2, 40], [12, 40], [2, 50]], 'group_id': 3},
        {'label': 'leaf', 'points': [[20, 40], [30, 40], [20, 50]], 'group_id': 3},
        {'label': 'stem', 'points': [[1, 1], [9, 9]], 'shape_type': 'line'},
    ]
    for name, image in (('a', 'a.png'), ('b', '..\\photos\\b.jpg')):
        content = {'version': '5', 'flags': {}, 'shapes': shapes, 'imagePath': image}
        (tmp_path / f'{name}.json').write_text(json.dumps(content))
    converted = convert_folder(tmp_path, tmp_path / 'coco')
    assert converted.title == 'labelme' and converted.classes == ['leaf', 'stem']
    assert [p.kind for p in converted.report.problems] == ['left out: line unreadable'] * 2
    entries = read_coco(tmp_path / 'coco/train.json')['annotations']
    assert [entry['bbox'] for entry in entries[:2]] == [[5, 5, 20, 20], [30, 10, 20, 20]]
    assert [entry['area'] for entry in entries[:2]] == [200, 400]
    assert entries[2]['bbox'] == [50, 30, 20, 20]
    assert entries[2]['area'] == pytest.approx(np.pi * 100, rel=0.01)  # 32 corners lose 0.6 %
    assert entries[3]['bbox'] == [2, 40, 29, 11] and isinstance(entries[3]['segmentation'], dict)


def test_classes_are_not_converted_as_objects_unless_asked(tmp_path, capsys):
    write_values(tmp_path / 'labels', [0, 1, 2])
    assert find_format(tmp_path / 'labels') is None
    with pytest.raises(UserError, match=r'masks/NAME/ .* number objects'):
        convert_folder(tmp_path / 'labels', tmp_path / 'out')
    out = tmp_path / 'out'
    words = [tmp_path / 'labels', '--format', 'numbers', '--out', out, '--classes']
    assert call('convert-data', *words, 'cell') == 0
    assert 'Found: label images that number objects' in capsys.readouterr().out
    assert len(read_coco(out / 'train.json')['annotations']) == 2 * 2
    assert call('convert-data', *words, 'cell', 'other', '--force') == 2
    assert '--classes takes one name' in capsys.readouterr().err


def test_other_names_after_a_conversion_need_another_one(tmp_path, monkeypatch, capsys):
    """The error names the command, and the command works."""
    monkeypatch.chdir(tmp_path)
    write_cells(tmp_path / 'cells', sizes=SIZES[:3])
    assert call('convert-data', 'cells') == 0
    assert call('init', 'detection', '--data', 'cells', '--classes', 'a nucleus') == 2
    command = capsys.readouterr().err.partition('xcit-mm ')[2]
    assert call(*shlex.split(command)) == 0
    assert read_coco('cells/coco/train.json')['categories'][0]['name'] == 'a nucleus'
