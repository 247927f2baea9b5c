"""Studies: runs happen once, and their results stand between the marks of a page."""

import json
from dataclasses import replace

import pytest

from dev.pretraining_study import STUDY, TASKS
from dev.real_data import STUDY as REAL_DATA
from dev.studies import Study, Task
from tests.tiny import ROOT


def record(task, model, seed, **metrics):
    curve = {'100': 0.1, '200': 0.2}
    known = dict(task=task, model=model, seed=seed, threads=1, processor_minutes=2.04)
    return {**known, 'metrics': metrics, 'curve': curve}


def test_the_report_shows_every_seed(tmp_path, capsys):
    page = tmp_path / 'page.md'
    page.write_text((ROOT / 'docs/studies/pretraining.md').read_text(encoding='utf-8'))
    study = replace(STUDY, out=tmp_path, page=page)

    def report():
        return study.main('study', 'a study', ['--report'])

    assert report() == 2 and 'no finished runs' in capsys.readouterr().err
    records = [
        record('camvid', model, seed, mIoU=10.0 * seed + shift, aAcc=50.0)
        for model, shift in (('random', 0), ('DINO', 5))
        for seed in range(3)
    ]
    dino = record('dino', 'camvid', 0, iterations=352)
    dino['curve'] = {'25': 4.0, '50': 5.1, '352': 3.0}
    dino['curves'] = {
        'information': {'25': 0.3, '50': 0.1, '352': 0.7},
        'accuracy/knn': {'0': 40.0, '1': 30.0, '2': 55.0},
        'accuracy/linear': {},
    }
    for number, one in enumerate([*records, dino]):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / 'record.json').write_text(json.dumps(one))
    assert report() == 0
    text = page.read_text(encoding='utf-8')
    assert '15.0 (5.0, 15.0, 25.0)' in text
    row = next(line for line in text.splitlines() if line.startswith('| camvid'))
    cells = [cell.strip() for cell in row.strip('|').split('|')]
    assert cells == [
        'camvid', '352', '5.10 to 3.00', '0.10 to 0.70', '40.0 to 55.0', '', '2.04',
    ]  # fmt: skip
    assert (tmp_path / 'images/page_curves.png').stat().st_size
    # The page keeps what it had when the runs are gone.
    for path in tmp_path.glob('*/record.json'):
        path.unlink()
    assert report() == 0 and page.read_text(encoding='utf-8') == text
    page.write_text('no marks')
    assert report() == 2 and 'must have the marks' in capsys.readouterr().err


@pytest.mark.parametrize('study', [STUDY, REAL_DATA])
def test_pages_show_what_was_recorded(study, tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    (tmp_path / study.page.name).write_bytes(study.page.read_bytes())
    (tmp_path / study.records.name).write_bytes(study.records.read_bytes())
    copy = replace(study, out=tmp_path, page=tmp_path / study.page.name)
    copy.write(copy.read_records())
    assert copy.page.read_bytes() == study.page.read_bytes()
    assert copy.records.read_bytes() == study.records.read_bytes()


@pytest.mark.parametrize('task', [*TASKS.values(), *REAL_DATA.tasks.values()])
def test_tasks_have_their_configs(task):
    assert all((ROOT / config).is_file() for config in task.configs.values())


@pytest.mark.long
def test_a_run_is_made_once(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('PYTHONPATH', str(ROOT))
    sizes = ('shapes.train=40', 'shapes.val=6', 'train_dataloader.dataset.indices=40')
    options = (*sizes, 'train_dataloader.batch_size=8')
    config = str(ROOT / 'dev/peers/xcit_n12_8_shapes_short.py')
    task = Task('t', {'m': config}, {'accuracy/top1': 'top-1'}, {'m': options})
    study = Study({'t': task}, tmp_path / 'out', tmp_path / 'page.md', 'start', False, (0,))
    study.run('t', 'm', 0, 1)
    (found,) = study.read_records()
    assert 0 <= found['metrics']['accuracy/top1'] <= 100 and len(found['curve']) == 1
    capfd.readouterr()
    study.run('t', 'm', 0, 1)
    assert not capfd.readouterr().out
