"""Heads with another number of classes than the data are found before the first iteration."""

import pytest
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from torch import nn

from xcit_mm.compat import revert_sync_bn
from xcit_mm.datasets.check.heads import check_heads
from xcit_mm.errors import UserError
from xcit_mm_cli import check, test, train

from ..tiny import recipe, write_config

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


@pytest.mark.parametrize(
    'name, attributes',
    [
        ('rpn_head', dict(num_classes=1)),
        ('semantic_head', dict(num_classes=183)),
        ('bbox_head', dict(num_classes=53, num_things_classes=50)),
        ('mask_head', dict(num_classes=80, class_agnostic=True)),
        ('backbone', dict(num_classes=1000)),
    ],
)
def test_heads_with_classes_of_their_own_are_left_alone(name, attributes):
    model = Parts({name: Parts(**attributes)})
    check_heads(model, {}, {'classes': NAMES}, 'training data')


def test_one_output_is_enough_for_two_classes():
    for classes, out_channels, legal in ((2, 1, True), (2, 3, False), (3, 1, False)):
        head = Parts(num_classes=2 if classes == 3 else 1, out_channels=out_channels)
        model, metainfo = Parts({'decode_head': head}), {'classes': NAMES[:classes]}
        if legal:
            check_heads(model, {}, metainfo, 'data')
        else:
            with pytest.raises(UserError, match='decode_head'):
                check_heads(model, {}, metainfo, 'data')
    wrapped = Parts({'module': model})
    with pytest.raises(UserError, match=': decode_head 2'):
        check_heads(wrapped, {'module': {}}, metainfo, 'data')
    check_heads(wrapped, {}, {'classes': NAMES, 'thing_classes': NAMES[:2]}, 'panoptic data')
    check_heads(wrapped, {}, {}, 'data without names')


def test_every_command_checks_the_heads(small_data, tmp_path, capfd):
    config = write_config(tmp_path, 'seg', small_data)
    wrong = ['--cfg-options', 'model.decode_head.num_classes=7']
    weights = tmp_path / 'none.pth'
    weights.touch()
    calls = [
        (train, [], 2, 'training data'),
        (train, ['check_classes=False', 'train_cfg.max_iters=0'], 0, None),
        (test, [], 2, 'test data'),
        (check, [], 1, 'train data'),
    ]
    for command, options, expected, what in calls:
        words = [str(config), *([str(weights)] if command is test else []), *wrong, *options]
        words += [] if command is check else ['--work-dir', str(tmp_path / 'work')]
        assert command.main(words) == expected
        printed = ''.join(capfd.readouterr())
        if what is not None:
            assert f'The {what} has 150 classes' in printed
            assert 'model = dict(decode_head=dict(num_classes=150))' in printed


def test_one_string_is_no_list_of_classes(small_data, tmp_path, capfd):
    config = write_config(tmp_path, 'det', small_data)
    loader = 'train_dataloader.dataset.metainfo.classes'
    for command in (train, check):
        assert command.main([str(config), '--cfg-options', f'{loader}=cell']) == 2
        assert "metainfo = dict(classes=('cell',))" in capfd.readouterr().err
