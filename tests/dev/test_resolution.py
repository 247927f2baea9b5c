"""The command that tests classifiers at several resolutions has the numbers of a plain loop."""

import json

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

from dev import resolution
from tests.tiny import ROOT

timm = pytest.importorskip('timm')

CONFIG = """
_base_ = '{root}/dev/configs/deit_s_16_in1k.py'
model = dict(backbone=dict(
    num_classes=3, img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3))
val_dataloader = dict(batch_size=4, num_workers=0, persistent_workers=False)
test_dataloader = val_dataloader
"""


def test_top1_by_size_is_that_of_a_plain_loop(tmp_path):
    random = np.random.default_rng(0)
    for label in range(3):
        folder = tmp_path / f'val/class{label}'
        folder.mkdir(parents=True)
        for index in range(6):
            image = random.integers(0, 256, (5, 7, 3), dtype=np.uint8)
            cv2.imwrite(str(folder / f'{index}.png'), cv2.resize(image, (50, 40)))
    config = tmp_path / 'config.py'
    config.write_text(CONFIG.format(root=ROOT))
    torch.manual_seed(0)
    size = dict(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3)
    model = timm.create_model(
        'deit_small_patch16_224', num_classes=3, dynamic_img_size=True, **size
    ).eval()
    # Predictions of random weights all alike would be no test.
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3)
    torch.save(model.state_dict(), tmp_path / 'weights.pth')
    arguments = ['--model', 'DeiT', str(config), str(tmp_path / 'weights.pth')]
    arguments += ['--sizes', '32', '64', '96', '--data-root', str(tmp_path)]
    assert resolution.main([*arguments, '--out-dir', str(tmp_path / 'out')]) == 0
    found = json.loads((tmp_path / 'out/resolution.json').read_text())['DeiT']
    for side in (32, 64, 96):
        transform = timm.data.create_transform(side, interpolation='bicubic', crop_pct=1.0)
        right = 0
        for path in sorted(tmp_path.glob('val/*/*.png')):
            with torch.no_grad(), Image.open(path) as image:
                scores = model(transform(image.convert('RGB'))[None])
            right += int(scores.argmax()) == int(path.parent.name[-1])
        assert found[str(side)] == pytest.approx(100 * right / 18)
    assert len(set(found.values())) > 1
    assert (tmp_path / 'out/resolution.png').stat().st_size > 10_000
