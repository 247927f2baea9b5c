import json
import subprocess
import sys

import pytest

from xcit_mm.stats import classifier_table

TABLE = classifier_table()


def test_table_has_every_cell_of_the_paper():
    assert len(TABLE) == 25
    assert len({row['model'] for row in TABLE}) == 14


@pytest.mark.parametrize('row', TABLE, ids=lambda row: f'{row["model"]}@{row["resolution"]}')
def test_parameters_and_gflops_are_the_papers(row):
    assert round(row['params_M']) == row['paper_params_M']
    difference = abs(row['gflops'] - row['paper_gflops'])
    assert difference <= max(0.025 * row['paper_gflops'], 0.1)


def test_tool_writes_json(tmp_path):
    out = tmp_path / 'stats.json'
    command = [sys.executable, 'tools/model_stats.py', '--format', 'json', '--out', str(out)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert str(out) in printed
    assert json.loads(out.read_text()) == TABLE
