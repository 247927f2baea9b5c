import json

import pytest

from ..tiny import call


def is_the_papers(row):
    difference = abs(row['gflops'] - row['paper_gflops'])
    return round(row['params_M']) == row['paper_params_M'] and difference <= max(
        0.025 * row['paper_gflops'], 0.1
    )


@pytest.mark.long
def test_parameters_and_gflops_are_the_papers(tmp_path, capsys):
    """Tests the output of the command: counting takes seconds, so it is done once."""
    out = tmp_path / 'stats.json'
    assert call('stats', '--format', 'json', '--out', out) == 0
    assert str(out) in capsys.readouterr().out
    table = json.loads(out.read_text())
    assert len(table) == 25 and len({row['model'] for row in table}) == 14
    assert [row for row in table if not is_the_papers(row)] == []
