"""Runs the Python code and configs that README and docs show."""

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
from xcit_mm_cli import main

from .runtime import graphs
from .runtime.without import without_torch
from .tiny import check_inputs

ROOT = Path(__file__).parents[1]


def blocks(page):
    """The Python code that a page shows."""
    return re.findall(r'```python\n(.*?)```', (ROOT / page).read_text(), re.DOTALL)


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


def decay_by_name(cfg, model):
    wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {names[id(g['params'][0])]: g for g in wrapper.optimizer.param_groups}


def test_every_block_is_tested():
    """Each block is run by a test below: count them here when you add one."""
    counts = {page: len(blocks(page)) for page in ('README.md', 'SECURITY.md', 'CONTRIBUTING.md')}
    counts |= {f'docs/{path.name}': len(blocks(path)) for path in (ROOT / 'docs').glob('*.md')}
    assert {page: count for page, count in counts.items() if count} == {
        'README.md': 2,
        'SECURITY.md': 1,
        'docs/backbone.md': 4,
        'docs/custom_data.md': 3,
        'docs/deploy.md': 1,
        'docs/distributed.md': 1,
        'docs/getting_started.md': 1,
        'docs/large_images.md': 2,
        'docs/pretraining.md': 2,
        'docs/resume.md': 1,
        'docs/visualization.md': 2,
    }


def test_config_of_the_readme_builds(tmp_path):
    cfg = config_of(tmp_path, blocks('README.md')[0])
    model = build_empty(cfg)
    assert isinstance(model.backbone, XCiT)
    assert model.neck.in_channels == [model.backbone.embed_dims] * 4
    check_inputs(cfg)
    groups = decay_by_name(cfg, model)
    assert {(group['lr'], group['weight_decay']) for group in groups.values()} == {(1e-4, 0.05)}


def test_python_of_the_readme_runs():
    names: dict = {}
    exec(blocks('README.md')[1], names)
    sizes = [tuple(level.shape[-2:]) for level in names['levels']]
    assert sizes == [(480 // stride, 640 // stride) for stride in (4, 8, 16, 32)]


def test_config_for_the_tools_of_others_builds(tmp_path, monkeypatch, capsys):
    """In a process that has not imported us, as those tools read it."""
    (block,) = blocks('docs/getting_started.md')
    (tmp_path / 'own.py').write_text(block)
    assert main(['--configs']) == 0
    monkeypatch.setenv('XCIT_MM_CONFIGS', capsys.readouterr().out.strip())
    code = "from mmengine import Config; print(Config.fromfile('own.py').model.backbone.type)"
    run = subprocess.run([sys.executable, '-c', code], cwd=tmp_path, stdout=-1, text=True)
    assert run.stdout.splitlines()[-1] == 'XCiT'


def test_example_of_another_detector_builds(tmp_path):
    cfg = config_of(tmp_path, blocks('docs/backbone.md')[0])
    cfg.model.backbone.init_cfg = None
    model = MODELS.build(cfg.model).eval()
    with torch.no_grad():
        scores, _ = model(torch.randn(1, 3, 64, 64), mode='tensor')
    assert [score.shape[-1] for score in scores] == [8, 4, 2, 1, 1]


def test_the_rows_of_the_table_start_from_the_configs_that_the_page_shows():
    first, schedule, *_ = blocks('docs/backbone.md')
    retinanet = next(iter(BASES))
    assert first == config_text(retinanet, 't12', 192, 'xcit://t12/16')
    assert schedule == SCHEDULE


def test_weight_decay_of_the_backbone_page(tmp_path):
    detector, _, layer_decay, _ = blocks('docs/backbone.md')
    cfg = config_of(tmp_path, detector)
    groups = decay_by_name(cfg, model := build_empty(cfg))
    exempt = {name for name, group in groups.items() if group['weight_decay'] == 0}
    norms = {n for n, m in model.backbone.named_modules() if isinstance(m, torch.nn.LayerNorm)}
    assert exempt == {f'backbone.{n}.{part}' for n in norms for part in ('weight', 'bias')}

    cfg = config_of(tmp_path, detector, layer_decay)
    groups = decay_by_name(cfg, build_empty(cfg))
    ratio = groups['backbone.layers.3.gamma1']['lr'] / groups['backbone.layers.4.gamma1']['lr']
    assert ratio == pytest.approx(0.75)
    assert groups['backbone.layers.0.lpi.norm.weight']['weight_decay'] == 0


def test_example_of_counting_operations_runs(capsys):
    names: dict = {}
    exec(blocks('docs/backbone.md')[3], names)
    assert names['result']['params'] == sum(p.numel() for p in XCiT('t12').parameters())
    assert 0.9e9 < names['result']['flops'] < 1.5e9  # the paper has 1.2 for the classifier


def test_classes_of_the_page_on_resuming_exist():
    (block,) = blocks('docs/resume.md')
    names = re.findall(r"type='(\w+)'", block) + re.findall(r'# or (\w+)', block)
    assert len(names) >= 5
    for name in names:
        assert any(registry.get(name) for registry in (HOOKS, DATA_SAMPLERS, LOOPS)), name


def test_config_of_sharded_training_is_read(tmp_path):
    cfg = config_of(tmp_path, *blocks('docs/distributed.md'))
    assert cfg.model_wrapper_cfg.type == 'FullySharded' and cfg.model.backbone.arch == 'm24'


def test_examples_of_large_images_run(tmp_path, capsys):
    import xcit_mm.large  # noqa: F401  what custom_imports does

    python, config = blocks('docs/large_images.md')
    exec(python, {})
    assert capsys.readouterr().out.startswith('[(128, 192), (64, 96), (32, 48), (16, 24)]')
    base = f"_base_ = '{ROOT}/configs/detection/mask_rcnn_xcit_n12_16_1x.py'\n"
    cfg = config_of(tmp_path, base, config)
    assert type(build_empty(cfg).backbone).__name__ == 'SpreadXCiT'
    loader = cfg.train_dataloader
    assert DATA_SAMPLERS.get(loader.sampler.type) and DATA_SAMPLERS.get(loader.batch_sampler.type)


def test_python_of_the_security_page_runs():
    for block in blocks('SECURITY.md'):
        # In a separate process: it changes how the whole process reads checkpoints.
        subprocess.run([sys.executable, '-c', block], cwd=ROOT, check=True, timeout=120)


def test_python_of_the_visualization_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(XCiTClassifier('n12', 8).state_dict(), 'n12.pth')
    cv2.imwrite('photo.jpg', np.random.default_rng(0).integers(0, 256, (48, 64, 3), np.uint8))
    Visualizer.get_instance('docs', vis_backends=[LocalVisBackend(str(tmp_path))])
    names: dict = {}
    first, second = blocks('docs/visualization.md')
    exec(first.replace('xcit://dino/s12/8', 'n12.pth'), names)
    assert names['maps'].shape == (2, 2, 6, 8)
    exec(second, names)
    assert list(tmp_path.rglob('magnitude_0.png'))


OWN_DATA = [
    'my_boxes',
    *(pytest.param(name, marks=pytest.mark.long) for name in ('my_detector', 'my_segmentor')),
]


@pytest.mark.parametrize('name', OWN_DATA)
def test_example_of_own_data_trains(name, small_shapes, tmp_path):
    from xcit_mm_cli import train

    from .tiny import short_run, shrink

    (code,) = [block for block in blocks('docs/custom_data.md') if block.startswith(f'# {name}.py')]
    cfg = config_of(tmp_path, code.replace("_base_ = '", f"_base_ = '{ROOT}/"))
    shrink(cfg.model)
    cfg.merge_from_dict({**short_run(cfg.default_scope, small_shapes), 'load_from': None})
    config = tmp_path / f'{name}.py'
    config.write_text(cfg.pretty_text)
    assert train.main([str(config), '--work-dir', str(tmp_path / 'work')]) == 0
    (checkpoint,) = (tmp_path / 'work').glob('*_1.pth')
    head = 'decode_head.conv_seg' if name == 'my_segmentor' else 'roi_head.bbox_head.fc_cls'
    saved = torch.load(checkpoint, weights_only=True)['state_dict']
    assert len(saved[f'{head}.weight']) == 6  # five classes, and one for everything else


def test_an_exported_model_runs_without_torch(tmp_path):
    (code,) = blocks('docs/deploy.md')
    info = graphs.metadata('detection', ['disc', 'bar', 'star'])
    graphs.detector(tmp_path / 'model.onnx', graphs.random_detections(3, (96, 96)), info)
    cv2.imwrite(str(tmp_path / 'photo.jpg'), np.zeros((96, 96, 3), np.uint8))
    run = without_torch(code, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.splitlines()) == 3
    assert cv2.imread(str(tmp_path / 'drawn.png')).any()


@pytest.mark.parametrize('number', [0, 1])
def test_pretrained_weights_go_into_a_detector(number, tmp_path):
    base = f"_base_ = '{ROOT}/configs/detection/mask_rcnn_xcit_s12_16_3x.py'"
    cfg = config_of(tmp_path, base, blocks('docs/pretraining.md')[number])
    revert_sync_bn(cfg)
    backbone = build_empty(cfg).backbone
    assert backbone.in_channels == (3, 13)[number]
    assert backbone.init_cfg['type'] == ('Pretrained', 'PretrainedXCiT')[number]
