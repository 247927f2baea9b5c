"""Shares of the inputs: who has which, what is recorded, and how it is merged and shown."""

import dataclasses
import tracemalloc

import pytest

from xcit_mm.errors import UserError
from xcit_mm.inference import merge, progress, shards
from xcit_mm.inference.processes import ALONE, device_of, this_process
from xcit_mm.inference.progress import InferenceProgress
from xcit_mm.inference.shards import InferenceJob, Records, Shard, open_journal

MASK = {'size': [480, 640], 'counts': 'x' * 10_000}


def write_shards(folder, count):
    """Two shards of a detector, with one mask in each image."""
    categories = [{'id': 1, 'name': 'disc'}]
    job = InferenceJob('', 'detection', count, count, categories, '', annotated=True, shares=2)
    for shard in (Shard(0, 2), Shard(1, 2)):
        with open_journal(folder, job, shard) as journal:
            for number in journal.left():
                image = {'id': number, 'file_name': f'{number}.jpg', 'height': 480, 'width': 640}
                found = [{'image_id': number, 'bbox': [0, 0, 1, 1], 'segmentation': MASK}]
                journal.add(number, {'image': image, 'annotations': found})
    return folder


def peak_of_merge(folder, count):
    write_shards(folder, count)
    tracemalloc.start()
    try:
        merge(Records(folder), folder)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_of_a_merge_does_not_grow_with_the_number_of_images(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, 'BLOCK', 32)
    few, many = (peak_of_merge(tmp_path / str(n), n) for n in (64, 320))
    # Where a line is takes 13 bytes, and the progress bar keeps its last thousand steps, of some
    # hundred bytes. To keep one mask of each image would take 10,000 bytes.
    assert many - few < 256 * 1_000
    assert (tmp_path / '320' / 'results.segm.json').stat().st_size > 320 * 10_000


def test_progress_in_a_log_is_a_line_now_and_then(monkeypatch, capsys):
    monkeypatch.setattr(progress, 'INTERVAL', 0.0)
    with InferenceProgress('shard 2/8', total=1_500, skipped=3) as bar:
        bar.advance(skipped=3)
        bar.advance(skipped=4)
    first, second = capsys.readouterr().out.split('\n')[:2]
    assert first.startswith('shard 2/8: 1 of 1,500, ') and first.endswith('3 skipped')
    assert second.startswith('shard 2/8: 2 of 1,500, ')
    for part in (' per second, ', '4 skipped', ' left'):
        assert part in second
    with InferenceProgress('shard 3/8', total=2, skipped=0, is_shown=False) as bar:
        bar.advance(skipped=0)
    assert capsys.readouterr().out == ''


def test_a_success_counts_after_a_failure(tmp_path):
    job = InferenceJob('', 'segmentation', 1, 1, [], '', annotated=False)
    with open_journal(tmp_path, job) as journal:
        journal.skip(0, 'a.jpg', 'cannot be read')
    with open_journal(tmp_path, job) as journal:
        assert not list(journal.left()) and journal.count_left() == 0
    with open_journal(tmp_path, job, retry=True) as journal:
        assert list(journal.left()) == [0]
        journal.add(0, {})
    records = Records(tmp_path)
    assert records.count_left() == 0 and len(list(records)) == 1 and not records.skipped


def test_launchers_say_which_share_a_process_has():
    slurm = {'SLURM_PROCID': '0', 'SLURM_NTASKS': '8', 'SLURM_LOCALID': '0'}
    for environ, expected in (
        ({}, ALONE),
        ({'RANK': '3', 'WORLD_SIZE': '8', 'LOCAL_RANK': '1', **slurm}, (Shard(3, 8), 1)),
        ({'WORLD_SIZE': '8'}, ALONE),
        # Slurm starts a batch script once, whatever the number of tasks is.
        (slurm, ALONE),
        ({**slurm, 'SLURM_STEP_NUM_TASKS': '1'}, ALONE),
        ({**slurm, 'SLURM_PROCID': '5', 'SLURM_STEP_NUM_TASKS': '8'}, (Shard(5, 8), 0)),
        ({'OMPI_COMM_WORLD_RANK': '2', 'OMPI_COMM_WORLD_SIZE': '4'}, (Shard(2, 4), 0)),
    ):
        assert this_process(None, environ) == expected
    assert this_process(Shard(1, 5), {'RANK': '3', 'WORLD_SIZE': '8'}) == (Shard(1, 5), 0)
    for rank, world in (('8', '8'), ('one', '8'), ('0', '0'), ('-1', '2')):
        with pytest.raises(UserError, match=f'RANK={rank} and WORLD_SIZE={world} must be'):
            this_process(None, {'RANK': rank, 'WORLD_SIZE': world})
    assert [device_of(rank, 2) for rank in range(3)] == ['cuda:0', 'cuda:1', 'cuda:0']
    assert device_of(3, 1) is None and device_of(0, 0) is None


def test_every_input_is_in_one_share(tmp_path):
    job = InferenceJob('', 'segmentation', 7, 7, [], '', annotated=False, shares=3)
    shares = []
    for index in range(3):
        with open_journal(tmp_path, job, Shard(index, 3)) as journal:
            shares.append(list(journal.left()))
    assert shares == [[0, 3, 6], [1, 4], [2, 5]]
    with pytest.raises(UserError, match='another number of shards'):
        open_journal(tmp_path, dataclasses.replace(job, shares=2), Shard(0, 2)).__enter__()


def test_two_processes_cannot_have_the_same_share(tmp_path):
    job = InferenceJob('', 'segmentation', 4, 4, [], '', annotated=False, shares=2)
    with open_journal(tmp_path, job, Shard(0, 2)) as journal:
        journal.add(0, {})
        with pytest.raises(UserError, match='Another process is writing'):
            open_journal(tmp_path, job, Shard(0, 2)).__enter__()
    with open_journal(tmp_path, job, Shard(0, 2)) as journal:
        assert list(journal.left()) == [2]
