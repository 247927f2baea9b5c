"""Runs the Python code and builds the configs that README and docs show."""

import re
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATA_SAMPLERS, HOOKS, LOOPS, MODELS, init_default_scope
from mmengine.visualization import LocalVisBackend, Visualizer

from dev.other_models import BASES, SCHEDULE, config_text
from xcit_mm.compat import revert_sync_bn
from xcit_mm.models import XCiT, XCiTClassifier
from xcit_mm.weights import read_checkpoint
from xcit_mm_cli import main

from .runtime import graphs
from .runtime.without import without_torch
from .tiny import check_inputs, short_run, shrink

ROOT = Path(__file__).parents[1]
# How many blocks of Python each page has; each is run by a test below.
BLOCKS = {
    'README.md': 1,
    'SECURITY.md': 1,
    'docs/backbone.md': 5,
    'docs/custom_data.md': 3,
    'docs/deploy.md': 1,
    'docs/distributed.md': 1,
    'docs/getting_started.md': 1,
    'docs/large_images.md': 3,
    'docs/pretraining.md': 2,
    'docs/troubleshooting.md': 1,
    'docs/visualization.md': 2,
}


def blocks(page):
    """The Python code that a page shows."""
    return re.findall(r'```python\n(.*?)```', (ROOT / page).read_text(encoding='utf-8'), re.DOTALL)


def run(code):
    """What a block leaves behind when it is run."""
    names: dict = {}
    exec(code, names)
    return names


def config_of(folder, *parts):
    """One config out of several blocks."""
    path = folder / 'config.py'
    path.write_text('\n'.join(parts))
    cfg = Config.fromfile(path)
    init_default_scope(cfg.get('default_scope', 'mmengine'))
    return cfg


def build_empty(cfg):
    with torch.device('meta'):
        return MODELS.build(cfg.model)


def groups_by_name(cfg, model):
    """The optimizer's parameter groups, by the name of their first parameter."""
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(g['params'][0])]: g for g in wrapper.optimizer.param_groups}


def test_every_block_is_tested():
    pages = [
        p.relative_to(ROOT).as_posix() for p in (*ROOT.glob('*.md'), *ROOT.glob('docs/**/*.md'))
    ]
    assert {page: len(blocks(page)) for page in pages if blocks(page)} == BLOCKS


def test_config_of_the_readme_builds(tmp_path):
    cfg = config_of(tmp_path, *blocks('README.md'))
    model = build_empty(cfg)
    assert isinstance(model.backbone, XCiT)
    assert model.neck.in_channels == [model.backbone.embed_dims] * 4
    check_inputs(cfg)
    groups = groups_by_name(cfg, model).values()
    assert {(group['lr'], group['weight_decay']) for group in groups} == {(1e-4, 0.05)}


def test_config_for_the_tools_of_others_builds(tmp_path, monkeypatch, capsys):
    """In a process that has not imported us, as those tools read it."""
    (block,) = blocks('docs/getting_started.md')
    (tmp_path / 'own.py').write_text(block)
    assert main(['--configs']) == 0
    monkeypatch.setenv('XCIT_MM_CONFIGS', capsys.readouterr().out.strip())
    code = "from mmengine import Config; print(Config.fromfile('own.py').model.backbone.type)"
    done = subprocess.run([sys.executable, '-c', code], cwd=tmp_path, stdout=-1, text=True)
    assert done.stdout.splitlines()[-1] == 'XCiT'


def test_configs_of_other_models_build(tmp_path):
    detector, schedule, layer_decay, *_ = blocks('docs/backbone.md')
    assert detector == config_text(next(iter(BASES)), 't12', 192, 'xcit://t12/16')
    assert schedule == SCHEDULE
    cfg = config_of(tmp_path, detector)
    cfg.model.backbone.init_cfg = None
    model = MODELS.build(cfg.model).eval()
    with torch.no_grad():
        scores, _ = model(torch.randn(1, 3, 64, 64), mode='tensor')
    assert [score.shape[-1] for score in scores] == [8, 4, 2, 1, 1]

    groups = groups_by_name(cfg, model)
    exempt = {name for name, group in groups.items() if group['weight_decay'] == 0}
    norms = {n for n, m in model.backbone.named_modules() if isinstance(m, torch.nn.LayerNorm)}
    assert exempt == {f'backbone.{n}.{part}' for n in norms for part in ('weight', 'bias')}

    cfg = config_of(tmp_path, detector, layer_decay)
    groups = groups_by_name(cfg, build_empty(cfg))
    ratio = groups['backbone.layers.3.gamma1']['lr'] / groups['backbone.layers.4.gamma1']['lr']
    assert ratio == pytest.approx(0.75)
    assert groups['backbone.layers.0.lpi.norm.weight']['weight_decay'] == 0


def test_python_of_the_backbone_page_runs(capsys):
    *_, complexity, features = blocks('docs/backbone.md')
    result = run(complexity)['result']
    assert result['params'] == sum(p.numel() for p in XCiT('t12').parameters())
    assert 0.9e9 < result['flops'] < 1.5e9  # the paper has 1.2 for the classifier
    sizes = [tuple(level.shape[-2:]) for level in run(features)['levels']]
    assert sizes == [(480 // stride, 640 // stride) for stride in (4, 8, 16, 32)]


def test_classes_of_the_page_on_resuming_exist():
    (block,) = blocks('docs/troubleshooting.md')
    names = re.findall(r"type='(\w+)'", block) + re.findall(r'# or (\w+)', block)
    assert len(names) >= 5
    for name in names:
        assert any(registry.get(name) for registry in (HOOKS, DATA_SAMPLERS, LOOPS)), name


def test_config_of_sharded_training_is_read(tmp_path):
    cfg = config_of(tmp_path, *blocks('docs/distributed.md'))
    assert cfg.model_wrapper_cfg.type == 'FullySharded' and cfg.model.backbone.arch == 'm24'


def test_examples_of_large_images_run(tmp_path, capsys):
    import xcit_mm.large  # noqa: F401  what custom_imports does

    windows, python, config = blocks('docs/large_images.md')
    model = build_empty(config_of(tmp_path, windows))
    assert model.windows == {'size': 512, 'overlap': 128, 'limit': 100}
    run(python)
    assert capsys.readouterr().out.startswith('[(128, 192), (64, 96), (32, 48), (16, 24)]')
    base = "_base_ = 'xcit_mm::detection/mask_rcnn_xcit_n12_16_1x.py'\n"
    cfg = config_of(tmp_path, base, config)
    assert type(build_empty(cfg).backbone).__name__ == 'SpreadXCiT'
    loader = cfg.train_dataloader
    assert DATA_SAMPLERS.get(loader.sampler.type) and DATA_SAMPLERS.get(loader.batch_sampler.type)


def test_python_of_the_security_page_runs():
    (block,) = blocks('SECURITY.md')
    # In a separate process: it changes how the whole process reads checkpoints.
    subprocess.run([sys.executable, '-c', block], cwd=ROOT, check=True, timeout=120)


def test_python_of_the_visualization_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(XCiTClassifier('n12', 8).state_dict(), 'n12.pth')
    cv2.imwrite('photo.jpg', np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8))
    Visualizer.get_instance('docs', vis_backends=[LocalVisBackend(str(tmp_path))])
    first, second = blocks('docs/visualization.md')
    names = run(first.replace('xcit://dino/s12/8', 'n12.pth'))
    assert names['maps'].shape == (2, 2, 6, 8)
    exec(second, names)
    assert list(tmp_path.rglob('magnitude_0.png'))


def own_data(name):
    """The block of the page on own data that begins with a name."""
    return next(b for b in blocks('docs/custom_data.md') if b.startswith(f'# {name}.py'))


@pytest.mark.parametrize(
    'name',
    [
        'my_boxes',
        pytest.param('my_detector', marks=pytest.mark.long),
        pytest.param('my_segmentor', marks=pytest.mark.long),
    ],
)
def test_config_for_own_data_trains(name, small_shapes, tmp_path):
    cfg = config_of(tmp_path, own_data(name))
    shrink(cfg.model)
    cfg.merge_from_dict({**short_run(cfg.default_scope, small_shapes), 'load_from': None})
    config = tmp_path / f'{name}.py'
    config.write_text(cfg.pretty_text)
    assert main(['train', str(config), '--work-dir', str(tmp_path / 'work')]) == 0
    (checkpoint,) = (tmp_path / 'work').glob('*_1.pth')
    head = 'decode_head.conv_seg' if name == 'my_segmentor' else 'roi_head.bbox_head.fc_cls'
    saved = read_checkpoint(checkpoint)['state_dict']
    assert len(saved[f'{head}.weight']) == 6  # five classes, and one for everything else


def test_an_exported_model_runs_without_torch(tmp_path):
    (code,) = blocks('docs/deploy.md')
    info = graphs.metadata('detection', ['disc', 'bar', 'star'])
    graphs.detector(tmp_path / 'model.onnx', graphs.random_detections(3, (96, 96)), info)
    cv2.imwrite(str(tmp_path / 'photo.jpg'), np.zeros((96, 96, 3), np.uint8))
    done = without_torch(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3
    assert cv2.imread(str(tmp_path / 'drawn.png')).any()


def test_pretrained_weights_go_into_a_detector(tmp_path):
    base = "_base_ = 'xcit_mm::detection/mask_rcnn_xcit_s12_16_3x.py'"
    wanted = [(3, 'Pretrained'), (13, 'PretrainedXCiT')]
    for block, (channels, kind) in zip(blocks('docs/pretraining.md'), wanted, strict=True):
        cfg = config_of(tmp_path, base, block)
        revert_sync_bn(cfg)
        backbone = build_empty(cfg).backbone
        assert (backbone.in_channels, backbone.init_cfg['type']) == (channels, kind)
