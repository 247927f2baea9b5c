"""Merging shards: the memory it takes, and the progress that is shown meanwhile."""

import tracemalloc

from xcit_mm.inference import merge, progress, shards
from xcit_mm.inference.progress import InferenceProgress
from xcit_mm.inference.shards import InferenceJob, Records, Shard, open_journal

MASK = {'size': [480, 640], 'counts': 'x' * 10_000}


def write_shards(folder, count):
    """Two shards of a detector, with one mask in each image."""
    categories = [{'id': 1, 'name': 'disc'}]
    job = InferenceJob('', 'detection', count, count, categories, '', annotated=True)
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


def test_a_success_counts_in_whichever_shard_it_is(tmp_path):
    job = InferenceJob('', 'segmentation', 1, 1, [], '', annotated=False)
    for folder, order in ((tmp_path / 'a', (1, 2)), (tmp_path / 'b', (2, 1))):
        with open_journal(folder, job, Shard(0, order[0])) as journal:
            journal.skip(0, 'a.jpg', 'cannot be read')
        with open_journal(folder, job, Shard(0, order[1]), retry=True) as journal:
            assert list(journal.left()) == [0]
            journal.add(0, {})
        records = Records(folder)
        assert records.missing == 0 and len(list(records)) == 1 and not list(records.skipped())
        with open_journal(folder, job, Shard(0, 3)) as journal:
            assert not list(journal.left()) and not journal.skipped
