"""Folders of Pascal VOC and YOLO become COCO files, and what is wrong with them is listed."""

import json
import os
import shutil
from types import SimpleNamespace

import pytest

from xcit_mm.datasets.check.coco import check_coco
from xcit_mm.datasets.folders import split_randomly
from xcit_mm.datasets.problems import CHANGED, LEFT_OUT
from xcit_mm_runtime.coco import read_coco

from ..tiny import call
from .own_data import read_shapes, write_voc, write_yolo, xml


def convert(*arguments):
    """The exit status of the command."""
    return call('convert-data', *arguments)


def objects_of(path, masks=False):
    """file_name -> its classes and boxes, of a COCO file that has no problems."""
    content = read_coco(path)
    assert not list(check_coco(content, str(path), masks=masks))
    names = {category['id']: category['name'] for category in content['categories']}
    found = {image['file_name']: [] for image in content['images']}
    files = {image['id']: image['file_name'] for image in content['images']}
    for one in content['annotations']:
        box = tuple(round(number, 2) for number in one['bbox'])
        found[files[one['image_id']]].append((names[one['category_id']], box))
    return found


def expected(shapes, split, prefix):
    _, images = read_shapes(shapes)[split]
    return {
        f'{prefix}{split}_{path.name}': [(name, tuple(box)) for name, box, _ in objects]
        for path, _, objects in images
    }


@pytest.fixture
def voc(small_shapes, tmp_path):
    return write_voc(small_shapes, tmp_path / 'voc')


@pytest.fixture
def yolo(small_shapes, tmp_path):
    return write_yolo(small_shapes, tmp_path / 'yolo')


@pytest.mark.parametrize(
    'write, prefix', [(write_voc, 'JPEGImages/'), (write_yolo, 'images/{}/')], ids=['voc', 'yolo']
)
def test_folders_become_coco(write, prefix, small_shapes, tmp_path, capsys):
    root, out = write(small_shapes, tmp_path / 'data'), tmp_path / 'elsewhere'
    assert convert(root) == 0
    printed = capsys.readouterr().out
    assert '0 left out, 0 notes' in printed and "ann_file='coco/train.json'" in printed
    assert convert(root) == 2 and '--force' in capsys.readouterr().err
    assert convert(root, '--force', '--splits', 'val') == 0
    assert convert(root, '--out', out) == 0 and str(out / 'val.json') in capsys.readouterr().out
    for place in (root / 'coco', out):
        # Not those of VOC's lists of one class.
        assert sorted(path.name for path in place.iterdir()) == ['train.json', 'val.json']
        for split in ('train', 'val'):
            found = objects_of(place / f'{split}.json')
            assert found == expected(small_shapes, split, prefix.format(split))


def test_polygons_are_kept(small_shapes, tmp_path):
    root = write_yolo(small_shapes, tmp_path / 'yolo', polygons=True)
    assert convert(root) == 0
    assert objects_of(root / 'coco/train.json', masks=True)
    _, images = read_shapes(small_shapes)['train']
    drawn = [outlines[0] for *_, objects in images for *_, outlines in objects]
    annotations = read_coco(root / 'coco/train.json')['annotations']
    for one, outline in zip(annotations, drawn, strict=True):
        # Written to a thousandth of a pixel.
        assert one['segmentation'][0] == pytest.approx(outline, abs=1e-3)
        assert 0 < one['area'] <= one['bbox'][2] * one['bbox'][3]


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
    later = split_randomly([*names, *(f'new {i}.jpg' for i in range(5))], 0.2, 0)['val']
    # At most 5 new ones come in, and push as many out.
    assert len(later) == 21 and len(set(val) - set(later)) <= 5
    assert split_randomly(names, 0.2, 1)['val'] != val
    assert len(split_randomly('ab', 0.01, 0)) == len(split_randomly('ab', 1, 0)) == 2
    assert split_randomly('a', 0.5, 0) == split_randomly('a', 0, 0) == {'train': ['a']}


def test_other_layouts_are_found(voc, yolo, small_shapes, tmp_path):
    """XML files beside images in folders of splits; images in split/images; lists of images."""
    beside = tmp_path / 'beside'
    for split, folder in (('train', 'train'), ('val', 'valid')):
        (beside / folder).mkdir(parents=True)
        for path in [*voc.glob(f'*/{split}*.jpg'), *voc.glob(f'*/{split}*.xml')]:
            shutil.copy(path, beside / folder)
    text = 'train: ../train/images\nval: [../val/images]\nnames: [disc, bar, triangle, star, arc]'
    (yolo / 'data.yaml').write_text(text)
    plain = write_yolo(small_shapes, tmp_path / 'plain', description=False)
    for split in ('train', 'val'):
        (yolo / split).mkdir(exist_ok=True)
        for kind in ('images', 'labels'):
            (yolo / kind / split).rename(yolo / split / kind)
        names = sorted(path.name for path in plain.glob(f'{split}_*.jpg'))
        (plain / f'{split}.txt').write_text('\n'.join(names))
    for root, prefix in ((beside, 'valid/'), (yolo, 'val/images/'), (plain, '')):
        assert convert(root) == 0
        assert objects_of(root / 'coco/val.json') == expected(small_shapes, 'val', prefix)


def labels(text):
    return lambda f: f.labels.write_text(text)


def boxes(*objects):
    return lambda f: f.labels.write_text(xml([(name, box) for name, *box in objects]))


def append(name, line):
    return lambda f: (f.root / name).write_text(f'{(f.root / name).read_text()}{line}\n')


def copy_image(f):
    shutil.copy(f.image, f.image.with_suffix('.png'))


def remove_image(f):
    f.image.unlink()


def remove_labels(f):
    f.labels.unlink()


# format and kind -> what is done to the first image and its labels
FAULTS = {
    ('voc', 'left out: empty box'): boxes(('disc', 5, 5, 5, 9), ('disc', 9, 9, 30, 5)),
    ('voc', 'left out: box outside'): boxes(('disc', 500, 5, 600, 50)),
    ('voc', 'left out: not a number'): boxes(('disc', 'nan', 1, 2, 3), ('bar', '', 1, 2, 3)),
    ('voc', 'left out: duplicate'): boxes(('disc', 1, 2, 30, 40), ('disc', 1, 2, 30, 40)),
    ('voc', 'left out: annotations unreadable'): labels('<annotation><object>'),
    ('voc', 'left out: image missing'): remove_image,
    ('voc', 'left out: image unreadable'): lambda f: f.image.write_bytes(b'JPEG'),
    ('voc', 'left out: several images'): copy_image,
    ('voc', 'left out: no annotations'): remove_labels,
    ('voc', 'changed: clipped'): boxes(('disc', -9, 5, 40, 50)),
    ('voc', 'changed: other size'): labels(xml([], (7, 8))),
    ('voc', 'changed: in several splits'): append('ImageSets/Main/val.txt', 'train_000000000001'),
    ('yolo', 'left out: line unreadable'): labels('0 0.5 0.5\n0 a b c d\n0.5 .5 .5 .1 .1'),
    ('yolo', 'left out: unknown class'): labels('5 0.5 0.5 0.2 0.2\n-1 0.5 0.5 0.2 0.2'),
    ('yolo', 'left out: not a number'): labels('0 nan .5 .1 .1\n0 .1 .1 nan .2 .3 .3'),
    ('yolo', 'left out: empty box'): labels('0 .5 .5 0 .1\n0 .1 .1 .2 .2 .3 .3'),
    ('yolo', 'left out: box outside'): labels('0 1.5 .5 .1 .1'),
    ('yolo', 'left out: annotations unreadable'): lambda f: f.labels.write_bytes(b'\xff\xfe\xff'),
    ('yolo', 'left out: image missing'): remove_image,
    ('yolo', 'left out: several images'): copy_image,
    ('yolo', 'left out: split missing'): append('data.yaml', 'test: images/nowhere'),
    ('yolo', 'changed: clipped'): labels('0 .95 .5 .5 .1'),
    ('yolo', 'changed: no labels'): remove_labels,
}


@pytest.mark.parametrize('kind, fault', FAULTS)
def test_faults_are_listed(kind, fault, request, tmp_path, capsys):
    root = request.getfixturevalue(kind)
    image = sorted(root.glob('*/train_*.jpg') if kind == 'voc' else root.glob('*/train/*.jpg'))[0]
    folder, suffix = ('Annotations', '.xml') if kind == 'voc' else ('labels/train', '.txt')
    labels = root / folder / f'{image.stem}{suffix}'
    FAULTS[kind, fault](SimpleNamespace(root=root, image=image, labels=labels))
    report = tmp_path / 'report.json'
    status = convert(root, '--json', report)
    problems = json.loads(report.read_text())['problems']
    assert {problem['problem'] for problem in problems} == {fault}
    named = {image.stem, image.parent.name, 'data', 'train'}
    assert any(name in problem['file'] for problem in problems for name in named)
    assert status == (1 if fault in LEFT_OUT else 0)
    assert fault in capsys.readouterr().out
    objects_of(root / 'coco/train.json')


def test_every_fault_is_tested():
    of_masks = {kind for kind in LEFT_OUT | CHANGED if 'mask' in kind}  # see test_masks.py
    assert {fault for _, fault in FAULTS} == (LEFT_OUT | CHANGED).keys() - of_masks


def test_chosen_classes_keep_their_order_and_others_are_left_out(voc, capsys):
    assert convert(voc, '--classes', 'star', 'disc') == 1
    content = read_coco(voc / 'coco/train.json')
    assert [category['name'] for category in content['categories']] == ['star', 'disc']
    assert 'is not one of star, disc' in capsys.readouterr().out


BOMB = '<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;">]><annotation>&b;</annotation>'


@pytest.mark.parametrize('encoding', ['utf-8', 'utf-16'])
def test_files_with_entities_are_refused(encoding, voc, capsys):
    path = sorted((voc / 'Annotations').iterdir())[0]
    path.write_bytes(BOMB.encode(encoding))
    assert convert(voc) == 1
    assert 'DOCTYPE' in capsys.readouterr().out


def test_difficult_objects_become_crowds_which_training_ignores(voc):
    """Crowds count neither for nor against a detector in COCO's evaluation."""
    from mmdet.datasets import CocoDataset

    (voc / 'ImageSets/Main/train.txt').write_text('train_000000000001')
    boxes = [('disc', (5, 5, 45, 45)), ('disc', (50, 50, 90, 90))]
    (voc / 'Annotations/train_000000000001.xml').write_text(xml(boxes, difficult={1}))
    assert convert(voc) == 0
    crowds = [one['iscrowd'] for one in read_coco(voc / 'coco/train.json')['annotations']]
    dataset = CocoDataset(
        ann_file='coco/train.json',
        data_root=f'{voc}/',
        data_prefix=dict(img=''),
        metainfo=dict(classes=('disc',)),
        pipeline=[],
    )
    ignored = [one['ignore_flag'] for one in dataset.get_data_info(0)['instances']]
    assert crowds == ignored == [0, 1]


def test_what_cannot_be_converted_is_explained(voc, small_shapes, tmp_path, capsys):
    (tmp_path / 'photos').mkdir()
    (tmp_path / 'photos/a.heic').write_bytes(b'')
    unnamed = write_yolo(small_shapes, tmp_path / 'unnamed', description=False)
    (unnamed / 'classes.txt').unlink()
    for arguments, messages in (
        ([tmp_path / 'photos'], ['Looked for XML files', '1 files with .heic']),
        ([tmp_path / 'none'], ['There is no folder']),
        ([voc, '--classes', 'none'], ['no usable object', 'left out: unknown class']),
        ([voc, '--splits', 'test'], ['has no images for test; it has train, val']),
        ([unnamed], ['--classes A B C']),
    ):
        assert convert(*arguments) == 2
        error = capsys.readouterr().err
        assert all(message in error for message in messages) and len(error.splitlines()) == 1
    assert not list(tmp_path.glob('*/coco/*'))
    assert convert(unnamed, '--classes', 'a', 'b', 'c', 'd', 'e') == 0


@pytest.mark.skipif(os.geteuid() == 0, reason='root may write anywhere')
def test_a_read_only_folder_is_explained(voc, capsys):
    voc.chmod(0o500)
    assert convert(voc) == 2 and 'could not be read or written' in capsys.readouterr().err
