"""Models from checkpoints: the names and colors of their classes."""

from mmengine.registry import init_default_scope
from mmseg.datasets import ADE20KDataset

from xcit_mm.inference.predictors import class_info
from xcit_mm_runtime.draw import colors

from ..tiny import recipe


def test_classes_and_colors_are_those_of_the_checkpoint_then_of_the_config():
    cfg = recipe('sem_fpn', 16)
    init_default_scope('mmseg')
    ade = {key: ADE20KDataset.METAINFO[key] for key in ('classes', 'palette')}
    ade['classes'] = list(ade['classes'])
    own = {'classes': ['a', 'b'], 'palette': [[1, 2, 3], [4, 5, 6]]}
    old = {'CLASSES': ('a', 'b'), 'PALETTE': own['palette']}  # mmseg 0.x
    generated = [list(color[::-1]) for color in colors(3)]
    three = {'classes': ['a', 'b', 'class 2'], 'palette': [*own['palette'], generated[2]]}
    for count, meta, expected in (
        (2, {'dataset_meta': own}, own),
        (2, old, own),
        # Colors of other classes are not used.
        (2, {'dataset_meta': {'classes': ['a', 'b']}}, {**own, 'palette': generated[:2]}),
        (3, {'dataset_meta': own}, three),
        # Names of another number of classes are those of other data.
        (150, {'dataset_meta': own}, ade),
        (150, {}, ade),
        (150, {'dataset_meta': {'classes': ade['classes']}}, ade),
    ):
        cfg.model.decode_head.num_classes = count
        assert class_info(cfg, {'meta': meta}) == expected
    assert class_info(cfg, None) == class_info(cfg, {}) == ade
