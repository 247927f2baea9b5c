"""The built-in dataset is correct. Most other tests read it with mmdet and mmseg."""

import cv2
import numpy as np
import pytest
from pycocotools.coco import COCO

from xcit_mm.datasets.check.coco import check_coco
from xcit_mm.datasets.shapes import CLASSES, ensure_shapes, make_shapes
from xcit_mm.datasets.shapes.draw import draw_scene
from xcit_mm.errors import UserError

from ..tiny import call


@pytest.fixture(scope='module')
def root(tmp_path_factory):
    return make_shapes(tmp_path_factory.mktemp('shapes') / 'set', train=120, val=10, size=96)


def content(folder):
    return {p.relative_to(folder): p.read_bytes() for p in folder.rglob('*') if p.is_file()}


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path):
    a, b, c = (
        content(make_shapes(tmp_path / name, train=6, val=3, size=64, seed=seed))
        for name, seed in (('a', 5), ('b', 5), ('c', 6))
    )
    assert a == b != c


def test_the_coco_layout_is_valid(root):
    coco = COCO(root / 'coco' / 'annotations' / 'instances_train2017.json')
    annotations = coco.loadAnns(coco.getAnnIds())
    assert not list(check_coco(coco.dataset, 'shapes', CLASSES, masks=True))
    assert {a['category_id'] for a in annotations} == set(range(1, 6))
    assert any(a['iscrowd'] for a in annotations)
    assert any(not coco.getAnnIds(imgIds=i) for i in coco.getImgIds())
    sizes = {(i['height'], i['width']) for i in coco.loadImgs(coco.getImgIds())}
    assert len(sizes) == 3
    for annotation in annotations:
        mask = coco.annToMask(annotation).astype(bool)
        x, y, w, h = annotation['bbox']
        # A polygon runs through the pixels of its edge, not around them.
        edge = 0 if annotation['iscrowd'] else (w + h) / 2
        assert annotation['area'] > 0 and abs(mask.sum() - annotation['area']) <= edge
        rows, columns = np.nonzero(mask)
        assert abs(columns.min() - x) <= 1 and abs(rows.max() + 1 - y - h) <= 1
    areas = [a['area'] for a in annotations]
    assert max(areas) > 5 * min(areas)


def test_the_ade_layout_has_the_same_images_and_zero_as_unlabeled(root):
    names = sorted(p.name for p in (root / 'coco' / 'train2017').iterdir())
    labels = []
    for index, name in enumerate(names, 1):
        stem = f'ADE_train_{index:08d}'
        image = root / 'ade' / 'images' / 'training' / f'{stem}.jpg'
        assert image.read_bytes() == (root / 'coco' / 'train2017' / name).read_bytes()
        label = cv2.imread(
            str(root / 'ade' / 'annotations' / 'training' / f'{stem}.png'), cv2.IMREAD_UNCHANGED
        )
        assert label.shape == cv2.imread(str(image)).shape[:2]
        labels.append(np.bincount(label.ravel(), minlength=7))
    counts = np.sum(labels, 0)
    assert len(counts) == 7 and (counts > 0).all()
    assert counts[0] < 0.15 * counts.sum()


def test_color_says_nothing_about_class(root):
    """Mean colors of the classes differ less than the colors within a class."""
    coco = COCO(root / 'coco' / 'annotations' / 'instances_train2017.json')
    colors = {c: [] for c in range(1, 6)}
    for annotation in coco.anns.values():
        path = root / 'coco' / 'train2017' / f'{annotation["image_id"]:012d}.jpg'
        mask = coco.annToMask(annotation).astype(bool)
        colors[annotation['category_id']].append(cv2.imread(str(path))[mask].mean(0))
    means = np.array([np.mean(c, 0) for c in colors.values()])
    within = np.mean([np.std(c, 0).mean() for c in colors.values()])
    assert means.std(0).max() < 0.5 * within


def test_negatives_have_dark_shapes_on_light_grounds():
    for negatives, sign in ((0.0, 1), (1.0, -1)):
        for seed in range(20):
            scene = draw_scene(np.random.default_rng([seed]), 96, 96, negatives)
            if not scene.shapes:
                continue
            is_shape = np.any([shape.mask for shape in scene.shapes], 0)
            light = scene.image.mean(2)
            assert sign * (light[is_shape].mean() - light[~is_shape].mean()) > 50
    images = [draw_scene(np.random.default_rng([i]), 64, 64, 0.5).image for i in range(200)]
    assert 0.4 < np.mean([np.median(image) > 127 for image in images]) < 0.6


def test_nothing_is_overwritten_and_nothing_incomplete_is_used(tmp_path):
    spec = dict(train=2, val=1, size=64)
    root = make_shapes(tmp_path / 'x', **spec)
    negatives = make_shapes(tmp_path / 'negatives', **spec, negatives=0.5)
    assert ensure_shapes(root, **spec, seed=0) == root
    with pytest.raises(UserError, match='already exists'):
        make_shapes(root, **spec)
    for folder, other in ((root, dict(val=2)), (root, dict(negatives=0.5)), (negatives, {})):
        with pytest.raises(UserError, match='was made with'):
            ensure_shapes(folder, **spec | other)
    (tmp_path / 'y.unfinished').mkdir()
    (tmp_path / 'y.unfinished' / 'rubbish').touch()
    assert not (make_shapes(tmp_path / 'y', **spec) / 'rubbish').exists()
    for wrong in (dict(train=0), dict(size=8), dict(seed=-1), dict(negatives=1.5)):
        with pytest.raises(ValueError, match='at least'):
            make_shapes(tmp_path / 'z', **wrong)


def test_command_line(tmp_path, capsys):
    arguments = [str(tmp_path / 'd'), '--train', '2', '--val', '1', '--size', '64']
    assert call('shapes', *arguments) == 0 and f'{tmp_path}/d/coco' in capsys.readouterr().out
    assert call('shapes', *arguments) == 2 and '--force' in capsys.readouterr().err
    assert call('shapes', *arguments, '--force') == 0
