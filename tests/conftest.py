import functools
import json
import os
import shutil
import signal
import socket

import pytest

from xcit_mm_cli.doctor import ISA_WITHOUT_AMX, has_broken_amx

# Before torch is imported; processes that are started later inherit the setting.
if 'ONEDNN_MAX_CPU_ISA' not in os.environ and has_broken_amx():
    os.environ['ONEDNN_MAX_CPU_ISA'] = ISA_WITHOUT_AMX

import torch
from hypothesis import settings
from mmengine.config import config as config_module
from mmengine.config import utils as config_utils
from mmengine.runner import CheckpointLoader
from mmengine.utils import digit_version
from torch.utils.data import _utils as data_utils

from xcit_mm.datasets.shapes import make_shapes

from .tiny import call, forget_runs, write_recipe

if 'PYTEST_XDIST_WORKER' in os.environ:
    # Parallel tests, and the processes that they start, share the cores.
    os.environ['OMP_NUM_THREADS'] = '1'
    torch.set_num_threads(1)

# In the background of a shell, Ctrl-C is ignored by all processes that are started there.
signal.signal(signal.SIGINT, signal.default_int_handler)

# mmengine reads all metafiles of mmdet or mmseg for each base of each config.
config_utils.load = functools.cache(config_utils.load)


# A fork of mmengine formats in another way.
format_code = getattr(config_module, 'FormatCode', None)


def format_once(text, formatted={}, **style):  # noqa: B006
    """Remember what yapf returns: a run formats its config four times, for a second each."""
    if text not in formatted:
        formatted[text] = format_code(text, **style)
    return formatted[text]


if format_code is not None:
    config_module.FormatCode = format_once

# How long the end of a data loader waits for each of its processes, which it then ends itself.
data_utils.MP_STATUS_CHECK_INTERVAL = 0.5

# What older versions of torch lack: export, FSDP2, compilation as one graph, an allow-list of
# torch.load, and parts of torch that only tests use. Files and tests, by parts of their names.
NEEDS_TORCH_2_6 = (
    *('tests/deploy/', 'tests/engine/test_sharding.py', 'tests/test_other_device.py'),
    'tests/models/fast/test_class_attention.py',
    *('is_legacy_batchedtensor]', 'is_compiling]', '_TorchDispatchModeKey.PROXY]'),
    *('_get_dispatch_mode]', 'test_a_captured_classifier_takes_any_batch'),
    'test_mmengine_checkpoint_is_read_with_weights_only_and_resumed',
    'test_stand_ins_build_numbers_and_histories_and_nothing_else',
    'test_torchs_allow_list_is_left_alone_where_it_is_not_needed',
    'test_segmentation_alone_imports_every_command_but_the_demo',
    *('test_everything_is_read_as_by_torch', 'test_histories_and_numbers_of_either_numpy_are_read'),
    'test_import_replaces_nothing_and_other_peoples_files_stay_readable',
    *('tests/models/fast/test_compiled.py', 'tests/dev/test_gpu_cost.py'),
    # Recomputation on the device meta, a GPU's fake tensors without a driver, torch.amp.GradScaler.
    *('test_the_parts_of_every_model_fit', 'test_forward_on_fake_tensors_of_a_gpu'),
    *('test_small_gradients_of_statistics_survive', 'test_both_moments_are_of_the_same_rounded'),
    'test_an_overflow_that_a_smaller_loss_scale_can_fix_does_not_count',
    # Autocast to float16, and products of float16, on the CPU.
    *('test_a_spoilt_image_has_nan_features', 'test_half_precision_is_close'),
    'test_a_step_in_half_precision_has_finite_gradients',
    'test_half_precision_does_not_overflow_at_375_000_tokens',
    *('test_the_same_input_twice_gives_the_same_output', 'test_shapes_and_strides_are_as_promised'),
    *('test_a_branch_in_inference[dtype1', 'test_a_branch_and_its_gradients_in_training[dtype1'),
    'test_all_layers_of_a_backbone[dtype1',
    'test_exported_equals_eager',
    'test_12_bit_images_are_scaled_alike_in_training_and_inference',
)


def needs_newer_torch(name):
    is_old = digit_version(torch.__version__) < digit_version('2.6')
    return is_old and any(part in name for part in NEEDS_TORCH_2_6)


class SkippedModule(pytest.Module):
    """A file that cannot be imported."""

    def collect(self):
        pytest.skip('needs torch 2.6')


def pytest_pycollect_makemodule(module_path, parent):
    if needs_newer_torch(module_path.as_posix()):
        return SkippedModule.from_parent(parent, path=module_path)


def pytest_collection_modifyitems(items):
    for item in items:
        if needs_newer_torch(item.nodeid):
            item.add_marker(pytest.mark.skip(reason='needs torch 2.6'))


# The same cases in every run of CI; new ones, and ten times as many, in long runs.
settings.register_profile('default', deadline=None, derandomize=True)
settings.register_profile('long', deadline=None, derandomize=False, print_blob=True)
settings.load_profile(os.environ.get('HYPOTHESIS_PROFILE', 'default'))


# How checkpoints are read before a command, in a test or a fixture, opts in to the strict reader.
SCHEMES = dict(CheckpointLoader._schemes)


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def separate_runs():
    """Let a test that runs commands leave nothing behind: they read checkpoints strictly."""
    forget_runs()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointLoader, '_schemes', dict(SCHEMES))
        yield


@pytest.fixture
def free_port():
    with socket.socket() as s:
        s.bind(('127.0.0.1', 0))
        return s.getsockname()[1]


@pytest.fixture(scope='session')
def small_shapes(tmp_path_factory):
    """A few images of the drawn shapes."""
    return make_shapes(tmp_path_factory.mktemp('data') / 'shapes', train=8, val=2, size=96)


@pytest.fixture(scope='session')
def small_data(small_shapes, tmp_path_factory):
    """The same in the layouts of COCO, with COCO's own categories, and of ADE20k."""
    from mmdet.datasets import CocoDataset

    root = shutil.copytree(small_shapes, tmp_path_factory.mktemp('data') / 'small')
    names = CocoDataset.METAINFO['classes']
    for path in (root / 'coco' / 'annotations').glob('*.json'):
        content = json.loads(path.read_text())
        content['categories'] = [{'id': i + 1, 'name': name} for i, name in enumerate(names)]
        path.write_text(json.dumps(content))
    return root


@pytest.fixture(scope='session')
def trained(small_data, tmp_path_factory):
    """A function that returns a recipe with a tiny model, and its checkpoint after one step."""

    @functools.cache
    def train_once(head, patch_size=16):
        folder = tmp_path_factory.mktemp(f'{head}_{patch_size}')
        config = write_recipe(folder, head, patch_size, small_data)
        assert call('train', config, '--work-dir', folder / 'work', '--seed', '1') == 0
        forget_runs()
        (checkpoint,) = (folder / 'work').glob('*_1.pth')
        return config, checkpoint

    return train_once
