"""The margin between objects and background, and the gallery that shows it."""

import json

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.logging import MMLogger
from mmengine.registry import MODELS

from dev import gallery, object_margin
from dev.margin import CocoObjects, auc, token_cover, untrained
from dev.margin import object_margin as measure
from dev.pages import write_between_marks
from xcit_mm.datasets.shapes import make_shapes
from xcit_mm.errors import UserError
from xcit_mm.visualization import Normalize, query_key_magnitude

from ..tiny import forget_runs


def test_auc_is_the_share_of_pairs():
    rng = np.random.default_rng(0)
    larger, smaller = rng.integers(0, 9, 40), rng.integers(0, 7, 30)
    pairs = [(a > b) + (a == b) / 2 for a in larger for b in smaller]
    assert auc(larger, smaller) == pytest.approx(np.mean(pairs))
    assert auc(np.array([2.0]), np.array([1.0])) == 1 and auc(larger, larger) == 0.5


def test_cover_counts_only_pixels_within_the_image():
    mask = np.zeros((10, 12), bool)
    mask[:4, :8] = True
    mask[8:, 8:] = True
    np.testing.assert_allclose(token_cover(mask, (2, 2), 8), [[0.5, 0], [0, 1]])


def test_margin_is_measured_on_objects_and_background(backbone, image):
    mask = np.zeros(image.shape[:2], bool)
    mask[16:40, 24:64] = True
    margin = measure(backbone, [(image, mask), (image, ~mask)], Normalize())
    maps = query_key_magnitude(backbone, image)
    on = np.zeros(maps.shape[2:], bool)
    on[2:5, 3:8] = True
    for layer in (0, 11):
        for i in range(2):
            objects, background = maps[layer, i][on], maps[layer, i][~on]
            ratio = objects.mean() / background.mean()
            assert margin.ratio[layer, i] == pytest.approx((ratio + 1 / ratio) / 2, rel=1e-5)
            # With objects and background swapped, the two sides of 0.5 cancel.
            assert margin.auc[layer, i] == pytest.approx(0.5)
    alone = measure(backbone, [(image, mask)], Normalize())
    assert alone.auc[0, 1] == pytest.approx(auc(maps[0, 1][on], maps[0, 1][~on]))
    with pytest.raises(ValueError, match='no image has both'):
        measure(backbone, [(image, np.zeros_like(mask))], Normalize())


def test_untrained_is_the_same_network_with_initial_weights(backbone):
    twin, again = untrained(backbone), untrained(backbone)
    for (name, new), other, old in zip(
        twin.named_parameters(), again.parameters(), backbone.parameters(), strict=True
    ):
        assert torch.equal(new, other)
        assert 'norm' in name or not torch.equal(new, old)
    for layer in twin.layers:
        assert (layer.xca.temperature == 1).all() and (layer.gamma1 == 1).all()
        assert layer.xca.qkv.weight.std().item() == pytest.approx(0.02, rel=0.1)
        assert (layer.lpi.norm.running_mean == 0).all()


CONFIG = """
_base_ = '{root}/configs/detection/mask_rcnn_xcit_n12_8_shapes.py'
model = dict(backbone=dict(
    _delete_=True, type='XCiT', arch=dict(embed_dims=32, depth=4, num_heads=2), patch_size=8,
    out_indices=(0, 1, 2, 3)))
shapes = dict(root='{data}', train=4, val=3, size=48)
train_dataloader = dict(dataset=dict(data_root='{data}/coco/'))
val_dataloader = dict(dataset=dict(data_root='{data}/coco/'))
val_evaluator = dict(ann_file='{data}/coco/annotations/instances_val2017.json')
"""


@pytest.fixture
def run(tmp_path, pytestconfig):
    """The folder of a training run with a small backbone, and its data."""
    folder = tmp_path / 'run'
    folder.mkdir()
    data = make_shapes(tmp_path / 'data', train=4, val=3, size=48)
    text = CONFIG.format(root=pytestconfig.rootpath, data=data)
    (folder / 'config.py').write_text(text)
    cfg = Config.fromfile(folder / 'config.py')
    backbone = MODELS.build(cfg.model.backbone)
    state = {f'backbone.{name}': tensor for name, tensor in backbone.state_dict().items()}
    torch.save({'state_dict': state}, folder / 'epoch_1.pth')
    return folder


def test_objects_of_coco(run):
    data = run.parent / 'data' / 'coco'
    annotations = data / 'annotations' / 'instances_val2017.json'
    objects = CocoObjects(data / 'val2017', annotations, limit=2)
    content = json.loads(annotations.read_text())
    assert len(objects) == 2 == len(list(objects))
    for info, (image, mask), labels in zip(
        content['images'], objects, objects.labels(), strict=False
    ):
        bgr = cv2.imread(str(data / 'val2017' / info['file_name']))
        np.testing.assert_array_equal(image, bgr[..., ::-1])
        own = [a for a in content['annotations'] if a['image_id'] == info['id']]
        assert {i + 1 for i, on in enumerate(labels) if on} == {a['category_id'] for a in own}
        areas = [a['area'] for a in own]
        # Outlines run through the middle of pixels, half of which count.
        assert 0.9 * max(areas) <= mask.sum() <= 1.1 * sum(areas)


def test_boxes_without_masks_are_refused_in_a_sentence(run, capsys):
    file = run.parent / 'data' / 'coco' / 'annotations' / 'instances_val2017.json'
    content = json.loads(file.read_text())
    for annotation in content['annotations']:
        del annotation['segmentation']
    file.write_text(json.dumps(content))
    assert object_margin.main([str(run / 'config.py'), str(run / 'epoch_1.pth')]) == 2
    error = capsys.readouterr().err
    assert f'error: {file} has objects without a mask' in error and 'Traceback' not in error


def test_the_command_prints_and_checks_the_margin(run, capsys):
    forget_runs()  # the next logger prints where capsys looks
    MMLogger.get_current_instance().info('as at the start of most runs')
    arguments = [str(run / 'config.py'), str(run / 'epoch_1.pth')]
    for bar, status in (('0.0', 0), ('1.01', 1)):
        assert object_margin.main([*arguments, '--at-least', bar]) == status
    printed = capsys.readouterr().out
    assert 'Largest margin' in printed and '3 images.' in printed
    assert 'torch.Size' not in printed  # a line of mmengine's log for each parameter
    with pytest.raises(SystemExit):
        object_margin.main([*arguments, '--images', '-1'])
    assert 'above 0' in capsys.readouterr().err
    header = next(line for line in printed.splitlines() if line.startswith('layer'))
    assert header.count('AUC') == 4 and header.count('ratio') == 2


def test_gallery_makes_pictures_and_numbers(run, monkeypatch, tmp_path, capsys):
    page = tmp_path / 'page.md'
    marks = [f'<!-- {name} -->\nold\n<!-- end of {name} -->' for name in ('margin', 'classes')]
    page.write_text(f'before\n{marks[0]}\nbetween {marks[1]}\nafter\n')
    monkeypatch.setattr(gallery, 'IMAGES', (0, 2))
    assert gallery.main(['--run', str(run), '--page', str(page)]) == 0
    text = page.read_text()
    assert text.startswith('before') and text.endswith('after\n') and '\nbetween ' in text
    assert 'old' not in text and text.count('<!--') == 4
    assert '| layer |' in text and 'Largest margin' in text and 'mean AUC' in text
    names = {path.name.removeprefix('visualization_') for path in tmp_path.glob('images/*.png')}
    wanted = {f'{name}_{i}.png' for name in ('magnitude', 'class_attention') for i in (1, 2)}
    assert names == wanted | {'covariance.png', 'pyramid.png'}
    assert 'page:' in capsys.readouterr().out
    page.write_text('no marks')
    with pytest.raises(UserError, match='marks'):
        write_between_marks(page, {'margin': 'text'})
    with pytest.raises(UserError, match='make demo'):
        gallery.find_run(tmp_path / 'nothing')


def test_the_largest_margin_may_be_above_or_below_half():
    def row(layer, queries, keys):
        values = {'queries': queries, 'keys': keys}
        parts = ({f'{n}: AUC': v, f'{n}: ratio': 0.8} for n, v in values.items())
        return {'layer': layer} | {key: value for part in parts for key, value in part.items()}

    value, sentence = object_margin.best([row(1, 0.6, 0.5), row(2, 0.7, 0.1)])
    assert value == 0.9 and 'keys of layer 2, AUC 0.100' in sentence
    value, sentence = object_margin.best([row(1, 0.8, 0.5), row(2, 0.7, 0.3)])
    assert value == 0.8 and 'queries of layer 1, AUC 0.800' in sentence
