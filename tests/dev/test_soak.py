"""The soak test detects what it is meant to detect."""

import json

import torch

from dev.soak import SoakedModel, main
from xcit_mm.datasets.shapes import make_shapes


def test_soak_reports_what_it_did(tmp_path, capfd):
    status = main(['--minutes=0', '--images=2', '--out-dir', str(tmp_path)])
    report = json.loads((tmp_path / 'soak.json').read_text())
    assert report['images'] == 2 * 2 * 2 and report['failures'] == []
    assert len(report['memory']) == 2
    # So few images are all warm-up: memory may grow, and then the status says so.
    assert status == (max(report['memory']) > 1.02 * report['memory'][0])
    *_, summary, last = capfd.readouterr().out.splitlines()
    assert '2 rounds in' in summary and last.endswith('soak.json')


def test_soak_notices_other_results_and_damaged_checkpoints(tmp_path):
    images = [make_shapes(tmp_path / 'shapes', 1, 1) / 'coco' / 'val2017' / '000000000001.jpg']
    model = SoakedModel('xcit_mm::segmentation/sem_fpn_xcit_n12_8_shapes.py', tmp_path)
    assert list(model.problems(images)) == []
    torch.nn.init.normal_(model.predictor.model.decode_head.conv_seg.weight)
    assert list(model.problems(images)) == ['the results differ from those of the first round']
    model.checkpoint.write_bytes(b'')
    (problem,) = model.problems(images)
    assert 'mmseg.pth' in problem
