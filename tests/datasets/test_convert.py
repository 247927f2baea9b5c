"""Folders of Pascal VOC and YOLO become COCO files, and what is wrong with them is listed."""

import json
import os
import shutil

import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from xcit_mm.datasets.check.coco import check_coco
from xcit_mm.datasets.folders import split_randomly
from xcit_mm.datasets.problems import CHANGED, LEFT_OUT
from xcit_mm_cli import convert_data
from xcit_mm_runtime.coco import read_coco

from .own_data import read_shapes, write_voc, write_yolo, xml


def convert(*arguments):
    """The exit status of the command."""
    return convert_data.main([str(word) for word in arguments])


def objects_of(path, decimals=2):
    """file_name -> its classes and boxes, of a COCO file that has no problems."""
    content = read_coco(str(path))
    assert not list(check_coco(content, str(path)))
    names = {category['id']: category['name'] for category in content['categories']}
    found = {image['file_name']: [] for image in content['images']}
    files = {image['id']: image['file_name'] for image in content['images']}
    for one in content['annotations']:
        box = tuple(round(number, decimals) for number in one['bbox'])
        found[files[one['image_id']]].append((names[one['category_id']], box))
    return found


def expected(shapes, split, folder):
    _, images = read_shapes(shapes)[split]
    return {
        f'{folder}/{split}_{path.name}': [(name, tuple(box)) for name, box, _ in objects]
        for path, _, objects in images
    }


@pytest.fixture
def voc(small_shapes, tmp_path):
    return write_voc(small_shapes, tmp_path / 'voc')


@pytest.fixture
def yolo(small_shapes, tmp_path):
    return write_yolo(small_shapes, tmp_path / 'yolo')


def test_voc_becomes_coco(voc, small_shapes, capsys):
    assert convert(voc) == 0
    files = sorted(path.name for path in (voc / 'coco').iterdir())
    assert files == ['train.json', 'val.json']  # not those of one class
    for split in ('train', 'val'):
        found = objects_of(voc / 'coco' / f'{split}.json')
        assert found == expected(small_shapes, split, 'JPEGImages')
    printed = capsys.readouterr().out
    assert '0 left out, 0 notes' in printed and "ann_file='coco/train.json'" in printed
    assert convert(voc) == 2 and '--force' in capsys.readouterr().err
    assert convert(voc, '--force', '--splits', 'val') == 0


def test_yolo_becomes_coco(yolo, small_shapes, tmp_path, capsys):
    out = tmp_path / 'elsewhere'
    assert convert(yolo, '--out', out) == 0
    for split in ('train', 'val'):
        found = objects_of(out / f'{split}.json')
        assert found == expected(small_shapes, split, f'images/{split}')
    assert str(out / 'train.json') in capsys.readouterr().out
    assert not (yolo / 'coco').exists()


def test_polygons_are_kept(small_shapes, tmp_path):
    root = write_yolo(small_shapes, tmp_path / 'yolo', polygons=True)
    assert convert(root) == 0
    content = read_coco(str(root / 'coco/train.json'))
    assert not list(check_coco(content, 'train.json', masks=True))
    _, images = read_shapes(small_shapes)['train']
    drawn = [outlines[0] for *_, objects in images for *_, outlines in objects]
    for one, outline in zip(content['annotations'], drawn, strict=True):
        # Written to a thousandth of a pixel.
        assert one['segmentation'][0] == pytest.approx(outline, abs=1e-3)
        width, height = one['bbox'][2:]
        assert 0 < one['area'] <= width * height


def test_a_folder_without_splits_is_split_the_same_way_each_time(small_shapes, tmp_path):
    contents = []
    for name in ('a', 'b'):
        root = write_yolo(small_shapes, tmp_path / name, description=False)
        assert convert(root, '--val-fraction', '0.3') == 0
        contents.append([(root / f'coco/{split}.json').read_text() for split in ('train', 'val')])
    assert contents[0] == contents[1]
    train, val = (objects_of(tmp_path / f'a/coco/{split}.json') for split in ('train', 'val'))
    assert len(train) == 7 and len(val) == 3 and not train.keys() & val.keys()
    root = write_voc(small_shapes, tmp_path / 'voc', lists=False)
    assert convert(root, '--val-fraction', '0.3', '--seed', '1') == 0
    assert len(objects_of(root / 'coco/val.json')) == 3


def test_a_split_hardly_changes_with_new_images():
    names = [f'{number}.jpg' for number in range(100)]
    train, val = split_randomly(names, 0.2, 0).values()
    assert len(val) == 20 and sorted(train + val) == sorted(names)
    assert split_randomly(reversed(names), 0.2, 0) == {'train': train, 'val': val}
    more = [*names, *(f'new {number}.jpg' for number in range(5))]
    later = split_randomly(more, 0.2, 0)['val']
    # At most 5 new ones come in, and push as many out.
    assert len(later) == 21 and len(set(val) - set(later)) <= 5
    assert split_randomly(names, 0.2, 1)['val'] != val
    assert len(split_randomly(['a', 'b'], 0.01, 0)) == len(split_randomly(['a', 'b'], 1, 0)) == 2
    assert split_randomly(['a'], 0.5, 0) == split_randomly(['a'], 0, 0) == {'train': ['a']}


def test_other_layouts_are_found(small_shapes, tmp_path):
    """XML files beside images in folders of splits; images in split/images; lists of images."""
    voc = write_voc(small_shapes, tmp_path / 'voc')
    other = tmp_path / 'beside'
    for split, folder in (('train', 'train'), ('val', 'valid')):
        (other / folder).mkdir(parents=True)
        for path in [*(voc / 'JPEGImages').iterdir(), *(voc / 'Annotations').iterdir()]:
            if path.stem.startswith(split):
                shutil.copy(path, other / folder)
    assert convert(other) == 0
    assert objects_of(other / 'coco/val.json') == {
        name.replace('JPEGImages', 'valid'): found
        for name, found in expected(small_shapes, 'val', 'JPEGImages').items()
    }
    yolo = write_yolo(small_shapes, tmp_path / 'yolo')
    (yolo / 'data.yaml').write_text(
        'train: ../train/images\nval: [../val/images]\nnames: [a, b, c, d, e]'
    )
    for split in ('train', 'val'):
        for kind in ('images', 'labels'):
            (yolo / split).mkdir(exist_ok=True)
            (yolo / kind / split).rename(yolo / split / kind)
    assert convert(yolo) == 0
    assert all(name.startswith('val/images/') for name in objects_of(yolo / 'coco/val.json'))
    plain = write_yolo(small_shapes, tmp_path / 'plain', description=False)
    for split in ('train', 'val'):
        names = sorted(path.name for path in plain.glob(f'{split}_*.jpg'))
        (plain / f'{split}.txt').write_text('\n'.join(names))
    assert convert(plain) == 0
    assert len(objects_of(plain / 'coco/val.json')) == 2


# kind -> what is done to the first image and XML file of the training split; its folder is `root`
VOC_FAULTS = {
    'left out: empty box': lambda f: f.write([('disc', (5, 5, 5, 9)), ('disc', (9, 9, 30, 5))], 2),
    'left out: box outside': lambda f: f.write([('disc', (500, 5, 600, 50))]),
    'left out: not a number': lambda f: f.write(
        [('disc', ('nan', 1, 2, 3)), ('bar', ('', 1, 2, 3))], 2
    ),
    'left out: duplicate': lambda f: f.write([('disc', (1, 2, 30, 40))] * 2),
    'left out: annotations unreadable': lambda f: f.labels.write_text('<annotation><object>'),
    'left out: image missing': lambda f: f.image.unlink(),
    'left out: image unreadable': lambda f: f.image.write_bytes(f.image.read_bytes()[:500]),
    'left out: several images': lambda f: shutil.copy(f.image, f.image.with_suffix('.png')),
    'left out: no annotations': lambda f: f.labels.unlink(),
    'changed: clipped': lambda f: f.write([('disc', (-9, 5, 40, 50))]),
    'changed: other size': lambda f: f.labels.write_text(xml([], (7, 8))),
    'changed: in several splits': lambda f: f.append('ImageSets/Main/val.txt', f.image.stem),
}
YOLO_FAULTS = {
    'left out: line unreadable': lambda f: f.labels.write_text(
        '0 0.5 0.5\n0 a b c d\n0.5 .5 .5 .1 .1'
    ),
    'left out: unknown class': lambda f: f.labels.write_text(
        '5 0.5 0.5 0.2 0.2\n-1 0.5 0.5 0.2 0.2'
    ),
    'left out: not a number': lambda f: f.labels.write_text('0 nan .5 .1 .1\n0 .1 .1 nan .2 .3 .3'),
    'left out: empty box': lambda f: f.labels.write_text('0 .5 .5 0 .1\n0 .1 .1 .2 .2 .3 .3'),
    'left out: box outside': lambda f: f.labels.write_text('0 1.5 .5 .1 .1'),
    'left out: annotations unreadable': lambda f: f.labels.write_bytes(b'\xff\xfe\xff'),
    'left out: image missing': lambda f: f.image.unlink(),
    'left out: several images': lambda f: shutil.copy(f.image, f.image.with_suffix('.png')),
    'left out: split missing': lambda f: f.append('data.yaml', 'test: images/nowhere'),
    'changed: clipped': lambda f: f.labels.write_text('0 .95 .5 .5 .1'),
    'changed: no labels': lambda f: f.labels.unlink(),
}


class Faulty:
    """The first image and labels of a folder, to be spoilt."""

    def __init__(self, root, image, labels):
        self.root, self.image, self.labels, self.count = root, image, labels, 1

    def write(self, objects, count=1):
        self.labels.write_text(xml(objects))
        self.count = count

    def append(self, name, line):
        with (self.root / name).open('a') as file:
            file.write(line + '\n')


def check_fault(fault, kind, spoil, tmp_path, capsys):
    spoil(fault)
    report = tmp_path / 'report.json'
    status = convert(fault.root, '--json', report)
    problems = json.loads(report.read_text())['problems']
    assert {problem['problem'] for problem in problems} == {kind}
    assert len(problems) >= fault.count
    named = {fault.image.stem, fault.image.parent.name, 'data', 'train'}
    assert any(name in problem['file'] for problem in problems for name in named)
    assert status == (1 if kind in LEFT_OUT else 0)
    assert kind in capsys.readouterr().out
    objects_of(fault.root / 'coco/train.json')


@pytest.mark.parametrize('kind', VOC_FAULTS)
def test_faults_of_voc_are_listed(kind, voc, tmp_path, capsys):
    image = sorted((voc / 'JPEGImages').iterdir())[0]
    fault = Faulty(voc, image, voc / 'Annotations' / f'{image.stem}.xml')
    check_fault(fault, kind, VOC_FAULTS[kind], tmp_path, capsys)


@pytest.mark.parametrize('kind', YOLO_FAULTS)
def test_faults_of_yolo_are_listed(kind, yolo, tmp_path, capsys):
    image = sorted((yolo / 'images/train').iterdir())[0]
    fault = Faulty(yolo, image, yolo / 'labels/train' / f'{image.stem}.txt')
    check_fault(fault, kind, YOLO_FAULTS[kind], tmp_path, capsys)


def test_every_fault_is_tested():
    assert VOC_FAULTS.keys() | YOLO_FAULTS.keys() == LEFT_OUT.keys() | CHANGED.keys()


def test_chosen_classes_keep_their_order_and_others_are_left_out(voc, capsys):
    assert convert(voc, '--classes', 'star', 'disc') == 1
    content = json.loads((voc / 'coco/train.json').read_text())
    assert [category['name'] for category in content['categories']] == ['star', 'disc']
    assert 'is not one of star, disc' in capsys.readouterr().out
    assert convert(voc, '--classes', 'none', '--force') == 2
    assert 'no usable object' in capsys.readouterr().err


BOMB = '<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]><annotation>&b;</annotation>'


@pytest.mark.parametrize('encoding', ['utf-8', 'utf-16'])
def test_files_with_entities_are_refused(encoding, voc, capsys):
    path = sorted((voc / 'Annotations').iterdir())[0]
    path.write_bytes(BOMB.encode(encoding))
    assert convert(voc) == 1
    assert 'DOCTYPE' in capsys.readouterr().out


def test_difficult_objects_count_neither_for_nor_against(voc, capsys):
    """In the evaluation, and in training as mmdet's dataset reads them."""
    from mmdet.datasets import CocoDataset

    (voc / 'ImageSets/Main/train.txt').write_text('train_000000000001')
    boxes = [('disc', (5, 5, 45, 45)), ('disc', (50, 50, 90, 90))]
    path = voc / 'Annotations/train_000000000001.xml'
    path.write_text(xml(boxes, difficult={1}))
    assert convert(voc) == 0
    dataset = CocoDataset(
        ann_file='coco/train.json',
        data_root=f'{voc}/',
        data_prefix=dict(img=''),
        metainfo=dict(classes=('disc',)),
        pipeline=[],
    )
    assert [one['ignore_flag'] for one in dataset.get_data_info(0)['instances']] == [0, 1]
    truth = COCO(str(voc / 'coco/train.json'))
    first = {'image_id': 1, 'category_id': 2, 'bbox': [5, 5, 40, 40], 'score': 0.5}
    second = {**first, 'bbox': [50, 50, 40, 40], 'score': 0.9}
    category = truth.getCatIds(['disc'])[0]
    for found in ([first], [first, second]):
        results = truth.loadRes([{**one, 'category_id': category} for one in found])
        evaluation = COCOeval(truth, results, 'bbox')
        evaluation.params.catIds = [category]
        for step in (evaluation.evaluate, evaluation.accumulate, evaluation.summarize):
            step()
        assert evaluation.stats[0] == pytest.approx(1)


def test_a_folder_in_neither_format_is_explained(tmp_path, capsys):
    (tmp_path / 'photos').mkdir()
    (tmp_path / 'photos/a.heic').write_bytes(b'')
    assert convert(tmp_path) == 2
    error = capsys.readouterr().err
    assert 'Looked for XML files' in error and '1 files with .heic' in error
    assert not (tmp_path / 'coco').exists()
    assert convert(tmp_path / 'none') == 2 and 'There is no folder' in capsys.readouterr().err


def test_labels_without_names_of_classes_are_explained(small_shapes, tmp_path, capsys):
    root = write_yolo(small_shapes, tmp_path / 'yolo', description=False)
    (root / 'classes.txt').unlink()
    assert convert(root) == 2 and '--classes A B C' in capsys.readouterr().err
    assert convert(root, '--classes', 'a', 'b', 'c', 'd', 'e') == 0


@pytest.mark.skipif(os.geteuid() == 0, reason='root may write anywhere')
def test_a_read_only_folder_is_explained(voc, capsys):
    voc.chmod(0o500)
    assert convert(voc) == 2 and 'could not be read or written' in capsys.readouterr().err
