"""Mean average precision against cases worked by hand, and the layouts of the benchmarks."""

import json
import pickle
from fractions import Fraction

import cv2
import numpy as np
import pytest

from xcit_mm.errors import UserError
from xcit_mm.retrieval.benchmarks import (
    average_precision,
    find_benchmark,
    mean_average_precision,
)

# Images in the order of their scores: + is relevant, - is not, o is junk. For each +, the mean of
# the precisions just before and just after it.
BY_HAND = {
    '+': Fraction(1),
    '++--': Fraction(1),
    '-+': (Fraction(0) + Fraction(1, 2)) / 2,
    '+-+': (1 + (Fraction(1, 2) + Fraction(2, 3)) / 2) / 2,
    '-+-+': (Fraction(1, 4) + (Fraction(1, 3) + Fraction(1, 2)) / 2) / 2,
    'o+': Fraction(1),
    '+oo+': Fraction(1),
    'o-o+-o+': (Fraction(1, 4) + (Fraction(1, 3) + Fraction(1, 2)) / 2) / 2,
    '---+': Fraction(1, 8),
}


def worked(line):
    """The scores, the relevant images and the junk of a line, in another order than the line's."""
    numbers = np.random.default_rng(len(line)).permutation(len(line))
    scores = np.empty(len(line))
    scores[numbers] = -np.arange(len(line))
    kinds = {
        kind: [int(n) for n, c in zip(numbers, line, strict=True) if c == kind] for kind in '+o'
    }
    return scores, kinds['+'], kinds['o']


@pytest.mark.parametrize('line', BY_HAND)
def test_average_precision_by_hand(line):
    assert average_precision(*worked(line)) == pytest.approx(float(BY_HAND[line]), rel=1e-12)


def test_a_query_with_nothing_to_find_does_not_count():
    rows = [worked(line) for line in ('-+--', 'oo--', '+oo+')]
    scores = np.stack([row[0] for row in rows])
    assert np.isnan(average_precision(*rows[1]))
    found = mean_average_precision(scores, [row[1:] for row in rows])
    assert found == pytest.approx(100 * (0.25 + 1) / 2)


def write_images(folder, names):
    folder.mkdir(parents=True)
    for number, name in enumerate(names):
        cv2.imwrite(str(folder / f'{name}.png'), np.full((40, 60, 3), number, np.uint8))


TRUTH = {
    'imlist': ['c', 'a', 'b'],
    'qimlist': ['q', 'r'],
    'gnd': [
        {'bbx': [1.0, 2.0, 30.5, 20.0], 'easy': [0], 'hard': [2], 'junk': [1]},
        {'bbx': [0.0, 0.0, 9.0, 9.0], 'easy': np.array([1, 2]), 'hard': [], 'junk': np.array([])},
    ],
}
MEDIUM = [([0, 2], [1]), ([1, 2], [])]
HARD = [([2], [1, 0]), ([], [1, 2])]


def plain(value):
    return value.tolist()


def as_json(path):
    path.with_suffix('.json').write_text(json.dumps(TRUTH, default=plain))


def as_pickle(path):
    path.with_suffix('.pkl').write_bytes(pickle.dumps(TRUTH, protocol=2))


@pytest.mark.parametrize('write', [as_json, as_pickle])
def test_revisited_oxford(write, tmp_path):
    write_images(tmp_path / 'jpg', 'abcqrx')
    write(tmp_path / 'gnd_roxford5k')
    found = find_benchmark(str(tmp_path))
    assert [path.stem for path in found.images] == ['c', 'a', 'b']
    assert [(path.stem, list(box)) for path, box in found.queries] == [
        ('q', [1, 2, 30.5, 20]), ('r', [0, 0, 9, 9])
    ]  # fmt: skip
    assert found.answers == {'medium': MEDIUM, 'hard': HARD}


class Evil:
    def __reduce__(self):
        return print, ('this must not be run',)


@pytest.mark.parametrize('protocol', [2, 4])
def test_a_pickle_is_never_run(protocol, tmp_path, capsys):
    write_images(tmp_path / 'jpg', 'a')
    path = tmp_path / 'gnd_roxford5k.pkl'
    path.write_bytes(pickle.dumps({'gnd': Evil()}, protocol))
    with pytest.raises(UserError, match='convert it to JSON'):
        find_benchmark(str(tmp_path))
    assert capsys.readouterr().out == ''


def test_a_ground_truth_with_missing_images_is_refused(tmp_path):
    write_images(tmp_path / 'jpg', 'abq')
    as_json(tmp_path / 'gnd_roxford5k')
    with pytest.raises(UserError, match=r"gnd_roxford5k.json: .*'c'"):
        find_benchmark(str(tmp_path))


def test_holidays(tmp_path):
    write_images(tmp_path / 'jpg', ['100000', '100001', '100002', '100100', '100101', 'other'])
    found = find_benchmark(str(tmp_path))
    assert [path.stem for path, _ in found.queries] == ['100000', '100100']
    assert found.answers == {'mAP': [([1, 2], [0]), ([4], [3])]} and len(found.images) == 5


def test_a_folder_that_is_no_benchmark(tmp_path):
    write_images(tmp_path / 'photos', 'ab')
    with pytest.raises(UserError, match='not a benchmark'):
        find_benchmark(str(tmp_path))
