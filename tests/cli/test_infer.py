"""The infer command: detections, labels, pictures, videos, interruptions and bad files."""

import json
import signal
from pathlib import Path

import cv2
import mmcv
import numpy as np
import pytest
from mmdet.datasets import CocoDataset
from mmseg.datasets import ADE20KDataset
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torch._dynamo.utils import counters

from xcit_mm.inference import shards, videos
from xcit_mm.models.fast import operators
from xcit_mm_runtime import inputs, predict
from xcit_mm_runtime.__main__ import main as xcit_mm_runtime_main
from xcit_mm_runtime.draw import SEGMENTATION_OPACITY

from ..runtime.graphs import write_model
from ..tiny import call as call_command


@pytest.fixture
def images(small_data, tmp_path):
    folder = tmp_path / 'images'
    folder.mkdir()
    for i, source in enumerate(sorted((small_data / 'coco' / 'val2017').glob('*.jpg'))[:2]):
        (folder / f'{i}.jpg').write_bytes(source.read_bytes())
    (folder / 'broken.jpg').write_bytes(b'not an image')
    return folder


@pytest.fixture
def call(trained, images, tmp_path):
    """A function that runs inference, by default on a folder with two images and a broken one."""

    def run_infer(head, *more, inputs=(images,)):
        config, checkpoint = trained(head)
        words = [*inputs, '--config', config, '--checkpoint', checkpoint, *more]
        return call_command('infer', *words, '--out-dir', tmp_path / 'out')

    return run_infer


def test_a_detector(call, images, tmp_path, capfd):
    out = tmp_path / 'out'
    assert call('mask_rcnn', '--score-thr', '0.0', '--device', 'cpu') == 1
    printed = capfd.readouterr().out
    assert 'skipped, cannot be read' in printed and '2 of 3 images' in printed
    content = json.loads((out / 'predictions.json').read_text())
    assert [Path(i['file_name']).name for i in content['images']] == ['0.jpg', '1.jpg']
    assert len(content['categories']) == 80 and content['annotations']
    for annotation in content['annotations']:
        assert {'image_id', 'category_id', 'bbox', 'score', 'segmentation'} <= annotation.keys()
    assert cv2.imread(str(out / 'vis' / '0.png')) is not None
    assert call('mask_rcnn') == 2 and '--force' in capfd.readouterr().err
    assert call('mask_rcnn', inputs=['nothing*.jpg']) == 2
    assert 'names no image' in capfd.readouterr().err


def test_a_segmentor(call, images, tmp_path, capfd):
    write_video(images / 'clip.mp4', images)
    (images / 'moving.GIF').write_bytes(b'GIF89a')
    (images / 'notes.txt').write_text('notes')
    assert call('sem_fpn', '--device', 'cpu') == 1
    printed = capfd.readouterr().out
    for name in ('clip.mp4', 'moving.GIF'):
        assert f'left out, a file type that is not read from folders: {images / name}' in printed
    assert 'notes.txt' not in printed and '2 of 3 images' in printed
    labels = cv2.imread(str(tmp_path / 'out' / 'labels' / '0.png'), cv2.IMREAD_UNCHANGED)
    image = cv2.imread(str(images / '0.jpg'))
    assert labels.shape == image.shape[:2] and labels.dtype == np.uint8
    # The colors are those of ADE20k, with which the checkpoint was trained.
    picture = cv2.imread(str(tmp_path / 'out' / 'vis' / '0.png'))
    painted = np.array(ADE20KDataset.METAINFO['palette'])[labels][..., ::-1]
    mixed = image * (1 - SEGMENTATION_OPACITY) + painted * SEGMENTATION_OPACITY
    assert np.abs(picture[: len(image), : image.shape[1]] - mixed).max() <= 1


@pytest.mark.parametrize(
    'words, message',
    [
        (['--model', 'model.onnx'], 'not for an exported model'),
        (['--config', 'c.py', '--checkpoint', 'c.pth', '--whole'], 'which are not compiled'),
    ],
)
def test_what_is_not_compiled_is_refused(words, message, capfd):
    with pytest.raises(SystemExit):
        call_command('infer', 'photo.jpg', '--compile', *words)
    assert message in capfd.readouterr().err


def test_what_compiling_needs_is_named(call, monkeypatch, capfd):
    assert call('sem_fpn', '--compile', '--cfg-options', 'model.backbone.type=ResNet') == 2
    assert '--compile compiles XCiT, and the backbone is ResNet' in capfd.readouterr().err
    monkeypatch.setattr(operators, 'MIN_TORCH_TO_COMPILE', '99.0')
    assert call('sem_fpn', '--compile') == 2
    assert 'needs PyTorch 99.0 or newer' in capfd.readouterr().err


@pytest.mark.long
def test_compiled_layers_give_the_same_labels(call, images, tmp_path, capfd):
    small = cv2.resize(cv2.imread(str(images / '0.jpg')), (96, 64))
    cv2.imwrite(str(images / '2.png'), small)
    inputs = [images / '0.jpg', images / '1.jpg', images / '2.png']
    labels = {}
    for option in ([], ['--compile']):
        counters.clear()
        assert call('sem_fpn', '--force', '--device', 'cpu', *option, inputs=inputs) == 0
        files = sorted((tmp_path / 'out' / 'labels').glob('*.png'))
        labels[bool(option)] = [cv2.imread(str(file), cv2.IMREAD_UNCHANGED) for file in files]
    assert 'compiled in ' in capfd.readouterr().out
    # At most one per form of attention: images of other sizes compile nothing.
    assert 1 <= counters['stats']['unique_graphs'] <= 2
    for eager, compiled in zip(labels[False], labels[True], strict=True):
        # Rounding, 1e-5 of a score, decides where two classes are as close as that.
        assert (eager != compiled).mean() < 1e-3


def annotate(predictions, path):
    """Write every second prediction as ground truth, with ids that no counting would give."""
    content = json.loads(predictions.read_text())
    for i, image in enumerate(content['images']):
        image.update(id=700 + 31 * i, file_name=f'val2017/{Path(image["file_name"]).name}')
    for category in content['categories']:
        category['id'] = 5 + 3 * category['id']
    annotations = content['annotations'][::2]
    for annotation in annotations:
        annotation.update(image_id=700 + 31 * (annotation['image_id'] - 1), iscrowd=0)
        annotation['category_id'] = 5 + 3 * annotation['category_id']
        annotation['bbox'][2] *= 1.2  # so that not all matches are perfect
        annotation['area'] = annotation['bbox'][2] * annotation['bbox'][3]
    path.write_text(json.dumps({**content, 'annotations': annotations}))


def test_pycocotools_scores_the_predictions_as_the_test_command_does(
    trained, small_data, tmp_path, call, capfd
):
    folder, truth, out = small_data / 'coco' / 'val2017', tmp_path / 'truth.json', tmp_path / 'out'
    assert call('mask_rcnn', '--no-vis', inputs=[folder]) == 0
    assert 'Images have numbers of our own' in capfd.readouterr().out
    assert not list(out.glob('results*'))
    annotate(out / 'predictions.json', truth)
    config, checkpoint = trained('mask_rcnn')
    settings = [f'test_evaluator.ann_file={truth}', f'test_dataloader.dataset.ann_file={truth}']
    settings += [f'test_dataloader.dataset.data_prefix.img={folder.parent}/']
    words = [config, checkpoint, '--json', tmp_path / 'metrics.json', '--work-dir', tmp_path / 'w']
    assert call_command('test', *words, '--cfg-options', *settings) == 0
    metrics = json.loads((tmp_path / 'metrics.json').read_text())
    options = ('--no-vis', '--force', '--ann-file', truth)
    assert call('mask_rcnn', *options, inputs=[folder]) == 0
    coco = COCO(str(truth))
    predictions = json.loads((out / 'predictions.json').read_text())
    assert predictions['categories'] == coco.dataset['categories']
    assert {image['id'] for image in predictions['images']} == {700, 731}
    for results, kind in (
        (str(out / 'results.bbox.json'), 'bbox'),
        (str(out / 'results.segm.json'), 'segm'),
        (predictions['annotations'], 'bbox'),
    ):
        evaluation = COCOeval(coco, coco.loadRes(results), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
        # mmdet rounds to three digits.
        names = ('mAP', 'mAP_50', 'mAP_75', 'mAP_s', 'mAP_m', 'mAP_l')
        expected = [metrics[f'coco/{kind}_{name}'] for name in names]
        expected = [-1 if value is None else value for value in expected]
        assert evaluation.stats[:6] == pytest.approx(expected, abs=0.00051)
        assert 0.1 < evaluation.stats[0] < 0.95


def test_annotations_that_do_not_fit_are_refused_or_skipped(call, images, tmp_path, capfd):
    truth = tmp_path / 'truth.json'

    def run_with(names, categories, inputs=(f'{images}/[01].jpg',)):
        entries = [{'id': 40 + i, 'file_name': name} for i, name in enumerate(names)]
        kinds = [{'id': 7 + i, 'name': name} for i, name in enumerate(categories)]
        truth.write_text(json.dumps({'images': entries, 'categories': kinds}))
        status = call('mask_rcnn', '--no-vis', '--force', '--ann-file', truth, inputs=inputs)
        return status, capfd.readouterr()

    coco = CocoDataset.METAINFO['classes']
    status, printed = run_with(['other/0.jpg', 'images/0.jpg', '0.jpg'], [*coco, 'more'])
    assert status == 1 and f'not in the annotation file: {images}/1.jpg' in printed.out
    predictions = json.loads((tmp_path / 'out' / 'predictions.json').read_text())
    assert [image['id'] for image in predictions['images']] == [41]  # the longest match
    assert predictions['categories'][2] == {'id': 9, 'name': 'car'}
    status, printed = run_with(['0.jpg'], ['Person', *coco[1:]])
    assert status == 2 and "has no category 'person'" in printed.err
    status, printed = run_with(['0.jpg', '0.jpg'], coco)
    assert status == 2 and "several of its images are named '0.jpg'" in printed.err
    (images / 'sub').mkdir()
    (images / 'sub' / '0.jpg').write_bytes((images / '0.jpg').read_bytes())
    status, printed = run_with(['0.jpg'], coco, inputs=[images / '0.jpg', images / 'sub'])
    assert status == 2 and 'are both the image 40' in printed.err
    for content in ('[]', '{"images": []}', 'no JSON'):
        truth.write_text(content)
        assert call('mask_rcnn', '--ann-file', truth) == 2
        assert "not an annotation file in COCO's layout" in capfd.readouterr().err
    assert call('mask_rcnn', '--ann-file', tmp_path / 'none.json') == 2
    assert 'No such file' in capfd.readouterr().err


@pytest.mark.parametrize('head', ['mask_rcnn', 'sem_fpn'])
def test_an_interrupted_run_continues_without_force(head, call, tmp_path, monkeypatch, capfd):
    read, out = [], tmp_path / 'out'

    def read_image(path, *settings):
        read.append(Path(path).name)
        if len(read) == 2:
            signal.raise_signal(signal.SIGINT)
        return inputs.read_image(path, *settings)

    monkeypatch.setattr(predict, 'read_image', read_image)
    assert call(head) == 130
    error = capfd.readouterr().err
    assert error.splitlines()[-1].startswith('Interrupted. 1 of 3 inputs are done; the same comm')
    assert 'Traceback' not in error
    with (out / 'shards' / '0001_of_0001.jsonl').open('a') as file:
        file.write('{"number": half a line, as after a kill')
    assert call(head, '--no-vis') == 2  # other settings
    assert 'other images, weights or settings' in capfd.readouterr().err
    assert call(head) == 1 and read == ['0.jpg', '1.jpg', '1.jpg', 'broken.jpg']
    assert not (out / shards.FOLDER).exists()
    if head == 'mask_rcnn':
        content = json.loads((out / 'predictions.json').read_text())
        assert [Path(i['file_name']).name for i in content['images']] == ['0.jpg', '1.jpg']
        assert {a['image_id'] for a in content['annotations']} == {1, 2}
    else:
        assert {path.name for path in (out / 'labels').iterdir()} == {'0.png', '1.png'}
    assert call(head) == 2 and '--force' in capfd.readouterr().err


def write_video(path, images):
    """A video of seven frames with an odd size."""
    frame = cv2.resize(cv2.imread(str(images / '0.jpg')), (97, 65))
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter.fourcc(*'mp4v'), 10.0, (97, 65))
    for _ in range(7):
        writer.write(frame)
    writer.release()


@pytest.mark.parametrize('head', ['mask_rcnn', 'sem_fpn'])
def test_a_video_gives_a_video_with_predictions_drawn(head, call, images, tmp_path, capfd):
    clip, result = tmp_path / 'clip.mp4', tmp_path / 'out' / 'vis' / 'clip.mp4'
    write_video(clip, images)
    (tmp_path / 'broken.avi').write_bytes(b'not a video')
    options = ('--score-thr', '0') if head == 'mask_rcnn' else ()
    assert call(head, *options, inputs=(clip, tmp_path / 'broken.avi', '99')) == 1
    printed = capfd.readouterr().out
    for source in (tmp_path / 'broken.avi', 99):  # there is no such camera
        assert f'skipped, cannot be read: {source}' in printed
    assert '1 of 3 inputs' in printed and 'predictions' not in printed
    plain, drawn = mmcv.VideoReader(str(clip)), mmcv.VideoReader(str(result))
    assert len(drawn) == len(plain) == 7 and drawn.fps == plain.fps == 10
    assert drawn.height == plain.height
    # Next to a segmented video, there is a strip with the names of the classes.
    assert (drawn.width > plain.width) == (head == 'sem_fpn')
    assert np.abs(drawn[3][:, : plain.width].astype(int) - plain[3]).mean() > 10
    assert {path.name for path in (tmp_path / 'out').rglob('*.*')} == {'clip.mp4'}
    assert call(head, inputs=(clip,)) == 2 and 'clip.mp4 already' in capfd.readouterr().err
    assert call(head, '--no-vis', '--force', inputs=(clip,)) == 2
    assert 'leaves nothing to write' in capfd.readouterr().err


def test_ctrl_c_ends_the_video_of_a_camera(trained, call, images, tmp_path, monkeypatch):
    clip, open_video, read_frames = tmp_path / 'clip.mp4', cv2.VideoCapture, videos.read_frames
    write_video(clip, images)

    def frames(video):
        for i, frame in enumerate(read_frames(video)):
            if i == 3:
                signal.raise_signal(signal.SIGINT)
            yield frame

    # No camera here: a video stands in for it.
    monkeypatch.setattr(cv2, 'VideoCapture', lambda source: open_video(source or str(clip)))
    monkeypatch.setattr(videos, 'read_frames', frames)
    assert call('sem_fpn', inputs=('0',)) == 0
    assert len(mmcv.VideoReader(str(tmp_path / 'out' / 'vis' / 'camera_0.mp4'))) == 3


def test_images_that_are_too_small_or_too_thin_are_skipped_and_named(call, images, capfd):
    cv2.imwrite(str(images / 'small.png'), np.zeros((1, 1, 3), np.uint8))
    cv2.imwrite(str(images / 'thin.png'), np.zeros((16, 9000, 3), np.uint8))
    step = 'test_dataloader.dataset.pipeline.1'
    no_resize = ('--cfg-options', f'{step}.scale_factor=1.0', f'{step}.scale=None')
    # Resized, the small one would have a size that the network takes, and the thin one no height.
    for setting, skipped in (((), ('1x1', '9000x16')), (no_resize, ('1x1',))):
        chosen = [images / name for name in ('small.png', 'thin.png', '0.jpg')]
        assert call('sem_fpn', '--force', *setting, inputs=chosen) == 1
        printed = capfd.readouterr().out
        assert 'skipped, 1x1 pixels: images must be at least one patch in size' in printed
        assert (
            all(size in printed for size in skipped) and f'{3 - len(skipped)} of 3 ima' in printed
        )


@pytest.mark.parametrize('task', ['detection', 'segmentation'])
def test_an_exported_model_writes_what_the_command_without_torch_writes(
    task, images, tmp_path, capfd
):
    model, infer_dir, plain_dir = (tmp_path / name for name in ('model.onnx', 'out', 'plain'))
    write_model(model, task, (96, 96))
    cv2.imwrite(str(images / 'thin.png'), np.zeros((8, 3000, 3), np.uint8))
    words = [str(images), '--model', str(model), '--out-dir', str(infer_dir)]
    assert call_command('infer', *words) == 1
    printed = capfd.readouterr().out
    assert '2 of 4 images' in printed and 'too thin to be resized' in printed
    assert xcit_mm_runtime_main([str(model), str(images), '--out-dir', str(plain_dir)]) == 1
    for one, other in ((infer_dir, plain_dir), (plain_dir, infer_dir)):
        for path in one.rglob('*.*'):
            assert path.read_bytes() == (other / path.relative_to(one)).read_bytes(), path
    assert len(list(infer_dir.rglob('*.*'))) == (3 if task == 'detection' else 4)
    assert call_command('infer', *words) == 2 and '--force' in capfd.readouterr().err
    assert call_command('infer', *words[:1], '--model', images / '0.jpg') == 2
    assert 'not an ONNX file' in capfd.readouterr().err


def test_a_checkpoint_of_another_model_is_refused(call, trained, images, tmp_path, capfd):
    _, checkpoint = trained('upernet')
    other = ['--checkpoint', checkpoint]  # argparse takes the last one
    assert call('sem_fpn', *other) == 2
    assert 'does not belong to this config' in capfd.readouterr().err
    assert not (tmp_path / 'out' / 'labels').exists()
    assert call('sem_fpn', *other, '--allow-partial', inputs=[images / '0.jpg']) == 0
