"""Testing refuses checkpoints of another model, and no others."""

import pytest
import torch

from xcit_mm.engine import IncompleteWeightsError, LoadWatch
from xcit_mm.models import XCiT, XCiTClassifier
from xcit_mm.weights import read_checkpoint

from ..tiny import call, write_config
from ..weights.test_formats import to_released


def run(config, checkpoint, tmp_path, *options):
    work_dir = ['--work-dir', str(tmp_path / 'work')]
    return call('test', config, checkpoint, *work_dir, *options)


def read(checkpoint):
    return read_checkpoint(checkpoint)


def other_classes(state):
    """A head for another number of classes."""
    for name in ('decode_head.conv_seg.weight', 'decode_head.conv_seg.bias'):
        state[name] = state[name][:7].clone()


def no_head(state):
    for name in [name for name in state if name.startswith('decode_head.')]:
        del state[name]


def second_head(state):
    """All parameters of the model, and another head."""
    state['mask_head.conv.weight'] = torch.ones(1)


def unchanged(state):
    """The checkpoint of another head."""


REFUSED = {
    other_classes: ('leaves 2 of the', 'decode_head.conv_seg.weight, decode_head.conv_seg.bias'),
    no_head: ('parameters of the model at random values', 'decode_head.conv_seg.weight'),
    second_head: ('1 of its entries', 'mask_head.conv.weight'),
    unchanged: ('decode_head.psp_modules', 'neck.lateral_convs'),
}


@pytest.mark.parametrize('change', REFUSED, ids=lambda change: change.__name__)
def test_a_checkpoint_of_another_model_is_refused(change, trained, tmp_path, capfd):
    config, checkpoint = trained('sem_fpn')
    if change is unchanged:
        config, _ = trained('upernet')
    content = read(checkpoint)
    change(content['state_dict'])
    torch.save(content, tmp_path / 'other.pth')
    assert run(config, tmp_path / 'other.pth', tmp_path) == 2
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith('error: The checkpoint does not belong to this config: ')
    assert all(part in error for part in REFUSED[change]) and '--allow-partial' in error
    if change is other_classes:
        assert run(config, tmp_path / 'other.pth', tmp_path, '--allow-partial') == 0


def released_names(content):
    """As the authors' detectors and segmentors are named, without counters and classes."""
    state = content['state_dict']
    backbone = {k.removeprefix('backbone.'): v for k, v in state.items() if 'backbone.' in k}
    heads = {k: v for k, v in state.items() if 'backbone.' not in k}
    backbone = {f'backbone.{k}': v for k, v in to_released(backbone).items()}
    state = {k: v for k, v in {**backbone, **heads}.items() if 'num_batches_tracked' not in k}
    return {'meta': {}, 'state_dict': state, 'optimizer': {'state': {}, 'param_groups': []}}


def with_leftovers(content):
    """What tools leave in files: averaged weights, the optimizer, counts, processes' prefixes."""
    state = {f'module.{name}': tensor for name, tensor in content['state_dict'].items()}
    leftovers = {
        'ema_decode_head_conv_seg_weight': torch.ones(1),
        'ema_model.decode_head.conv_seg.weight': torch.ones(1),
        'epoch': torch.tensor(3),
        'decode_head.total_ops': torch.ones(1),
    }
    return {'state_dict': {**state, **leftovers}, 'ema_state_dict': state, 'optimizer': {}}


@pytest.mark.parametrize(
    'head, change', [('mask_rcnn', released_names), ('sem_fpn', with_leftovers)]
)
def test_a_complete_checkpoint_is_accepted(head, change, trained, tmp_path):
    config, checkpoint = trained(head)
    torch.save(change(read(checkpoint)), tmp_path / 'other.pth')
    assert run(config, tmp_path / 'other.pth', tmp_path) == 0


def test_averaged_weights_are_accepted(small_data, tmp_path):
    """mmengine's EMAHook loads, and swaps weights before and after a test."""

    config = write_config(tmp_path, 'seg', small_data)
    config.write_text(config.read_text() + "\ncustom_hooks = [dict(type='EMAHook')]\n")
    assert call('train', config, '--work-dir', tmp_path / 'work') == 0
    assert run(config, tmp_path / 'work' / 'iter_1.pth', tmp_path) == 0


def test_shared_parameters_count_as_set():
    model = torch.nn.ModuleList([torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)])
    model[1].weight = model[0].weight
    with pytest.raises(IncompleteWeightsError, match='3 of the 3'):
        LoadWatch(model).check()
    watch = LoadWatch(model)
    state = model.state_dict()
    del state['1.weight']
    model.load_state_dict(state, strict=False)
    watch.check()


def test_a_pyramid_that_the_file_lacks_is_unset():
    arch = dict(embed_dims=16, depth=2, num_heads=2)
    model = torch.nn.ModuleDict({'backbone': XCiT(arch, out_indices=(0, 1), strides=(8, 16))})
    classifier = XCiTClassifier(arch, num_classes=3)
    watch = LoadWatch(model)
    model.load_state_dict({f'backbone.{k}': v for k, v in classifier.state_dict().items()})
    with pytest.raises(IncompleteWeightsError, match=r'backbone\.pyramid\.levels'):
        watch.check()


def test_running_statistics_that_the_file_lacks_are_unset():
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 1, 1), torch.nn.BatchNorm2d(1))
    watch = LoadWatch(model)
    state = {k: v.clone() for k, v in model.state_dict().items() if 'running' not in k}
    model.load_state_dict(state, strict=False)
    with pytest.raises(IncompleteWeightsError, match=r'2 of the 6.*1\.running_mean'):
        watch.check()
