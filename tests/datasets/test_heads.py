"""Heads with another number of classes than the data are found before the first iteration."""

import pytest
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from xcit_mm.compat import revert_sync_bn
from xcit_mm.datasets.check.heads import check_heads
from xcit_mm.errors import UserError

from ..tiny import call, recipe, write_config

NAMES = ('a', 'b', 'c')
# our recipe -> the line that fits it to three classes
LINES = {
    'mask_rcnn': 'model = dict(roi_head=dict(bbox_head=dict(num_classes=3), '
    'mask_head=dict(num_classes=3)))',
    'cascade_mask_rcnn': 'model = dict(roi_head=dict(bbox_head=[dict(head, num_classes=3) for head '
    'in _base_.model.roi_head.bbox_head], mask_head=dict(num_classes=3)))',
    'upernet': 'model = dict(decode_head=dict(num_classes=3), auxiliary_head=dict(num_classes=3))',
}


def build(head):
    cfg = recipe(head, 16)
    revert_sync_bn(cfg)
    init_default_scope(cfg.default_scope)
    return MODELS.build(cfg.model), cfg.model


@pytest.mark.parametrize('head', LINES)
def test_the_line_in_the_message_fits_the_model_to_the_data(head):
    model, config = build(head)
    with pytest.raises(UserError, match=r'has 3 classes \(a, b, c\)') as error:
        check_heads(model, config, {'classes': NAMES}, 'training data')
    (line,) = [line.strip() for line in str(error.value).splitlines() if 'model = ' in line]
    assert line == LINES[head]
    cfg = Config({'model': config})
    settings = {'_base_': cfg}
    exec(line, settings)
    cfg.merge_from_dict({'model': settings['model']})
    check_heads(MODELS.build(cfg.model), cfg.model, {'classes': NAMES}, 'training data')


class Parts(nn.Module):
    """A module with attributes and parts."""

    def __init__(self, parts=None, **attributes):
        super().__init__()
        for name, part in (parts or {}).items():
            setattr(self, name, part)
        vars(self).update(attributes)


THREE = {'classes': NAMES}


@pytest.mark.parametrize(
    'name, attributes, metainfo, fits',
    [
        ('decode_head', dict(num_classes=3), THREE, True),
        ('decode_head', dict(num_classes=2), THREE, False),
        ('decode_head', dict(num_classes=2), {}, True),  # nobody knows
        # One output is enough for two classes.
        ('decode_head', dict(num_classes=1, out_channels=1), {'classes': NAMES[:2]}, True),
        ('decode_head', dict(num_classes=1, out_channels=3), {'classes': NAMES[:2]}, False),
        ('decode_head', dict(num_classes=2, out_channels=1), THREE, False),
        # These have classes of their own.
        ('rpn_head', dict(num_classes=1), THREE, True),
        ('semantic_head', dict(num_classes=183), THREE, True),
        ('bbox_head', dict(num_classes=53, num_things_classes=50), THREE, True),
        ('mask_head', dict(num_classes=80, class_agnostic=True), THREE, True),
        ('backbone', dict(num_classes=-1), THREE, True),
        # A classifier is a backbone with a head.
        ('backbone', dict(num_classes=1000), THREE, False),
        ('decode_head', dict(num_classes=2), {**THREE, 'thing_classes': NAMES[:2]}, True),
    ],
)
def test_heads_of_the_classes_are_checked(name, attributes, metainfo, fits):
    model = Parts({name: Parts(**attributes)})
    for wrapped, config in ((model, {}), (Parts({'module': model}), {'module': {}})):
        if fits:
            check_heads(wrapped, config, metainfo, 'data')
        else:
            with pytest.raises(UserError, match=f': {name} {attributes["num_classes"]}'):
                check_heads(wrapped, config, metainfo, 'data')


def test_every_command_checks_the_heads(small_data, tmp_path, capfd):
    config = write_config(tmp_path, 'seg', small_data)
    (tmp_path / 'none.pth').touch()
    for command, options, expected, what in (
        ('train', [], 2, 'training data'),
        ('train', ['check_classes=False', 'train_cfg.max_iters=0'], 0, None),
        ('test', [], 2, 'test data'),
        ('check', [], 1, 'train data'),
    ):
        words = [config, *([tmp_path / 'none.pth'] if command == 'test' else []), '--cfg-options']
        words += ['model.decode_head.num_classes=7', *options]
        words += [] if command == 'check' else ['--work-dir', tmp_path / 'work']
        assert call(command, *words) == expected
        printed = ''.join(capfd.readouterr())
        if what is not None:
            assert f'The {what} has 150 classes' in printed
            assert 'model = dict(decode_head=dict(num_classes=150))' in printed
