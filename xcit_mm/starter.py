"""Writes a config for a folder of somebody's data: about a page that trains as it is."""

import math
import pprint
import textwrap
from dataclasses import dataclass

from .configs import KEEP_DEPTH
from .datasets.find import Data, Split

# Images that training sees in all, from pretrained weights and from scratch, unless that is less
# than EPOCHS times each. docs/custom_data.md says where the numbers come from.
SEEN = {'detection': (10_000, 20_000), 'segmentation': (16_000, 40_000)}
EPOCHS = (12, 200)
# From pretrained weights, and from scratch.
LEARNING_RATES = (1e-4, 5e-4)
BATCH_SIZES = {'detection': 4, 'segmentation': 8}
# The longest short side in pixels, on a CPU and on a GPU.
SHORT_SIDES = {'detection': (360, 800), 'segmentation': (320, 512)}


@dataclass
class Choice:
    """What the user chose, or what fits the machine.

    Args:
        arch (str): The size of the network.
        patch_size (int): 8 or 16.
        weights (str, optional): What training starts from; None is from scratch.
        gpu (bool): Whether training runs on a GPU.
        command (str): The command, for the first comment.
    """

    arch: str
    patch_size: int
    weights: str | None
    gpu: bool
    command: str = ''

    @property
    def whole(self) -> bool:
        """Whether the weights are those of a whole detector or segmentor."""
        return (self.weights or '').startswith(('xcit://coco/', 'xcit://ade20k/'))


@dataclass
class Schedule:
    """How long and how fast a model is trained.

    Args:
        batch (int): Images per iteration.
        epochs (int): How often each image is seen.
        iterations (int): The number of iterations.
        interval (int): Iterations between validations.
        rate (float): The learning rate.
    """

    batch: int
    epochs: int
    iterations: int
    interval: int
    rate: float


def schedule(task: str, images: int, choice: Choice) -> Schedule:
    """A schedule that fits the number of images."""
    scratch = choice.weights is None
    batch = min(BATCH_SIZES[task] if choice.gpu else 4, images)
    epochs = min(max(round(SEEN[task][scratch] / images), EPOCHS[0]), EPOCHS[1])
    iterations = math.ceil(images / batch) * epochs
    if iterations > 1000:
        iterations = round(iterations, -2)
    return Schedule(batch, epochs, iterations, max(1, iterations // 10), LEARNING_RATES[scratch])


def detection_config(data: Data, choice: Choice) -> str:
    """The text of a config: Mask R-CNN if every object has a mask, or else Faster R-CNN."""
    train, val = data.splits['train'], data.splits['val']
    test = data.splits.get('test')
    plan = schedule('detection', train.total, choice)
    short, long = _sides(data.size, SHORT_SIDES['detection'][choice.gpu])
    scales = ', '.join(
        f'({round(long * f)}, {round(short * f)})' for f in (0.8, 0.9, 1.0, 1.1, 1.2)
    )
    head, name = ('mask_rcnn', 'Mask R-CNN') if data.masks else ('faster_rcnn', 'Faster R-CNN')
    masks = ', with_mask=True' if data.masks else ''
    every = max(1, plan.epochs // 10)
    return f"""\
{_heading(name, data, choice)}
_base_ = 'xcit_mm::detection/{head}_xcit_{choice.arch}_{choice.patch_size}_1x.py'

# The data. The order of the classes is that of the annotation files.
data_root = {_root(data)!r}
metainfo = {_metainfo(data)}
num_classes = len(metainfo['classes'])
{_detector(data, choice)}
{_load_from(choice)}
# The size at which images are seen: width and height, kept in proportion. The median image has
# {data.size[0]} x {data.size[1]} pixels. If objects are smaller than 16 pixels, use larger sizes.
test_scale = ({long}, {short})
train_scales = [{scales}]
train_pipeline = [
{_load_image(data)}
    dict(type='LoadAnnotations', with_bbox=True{masks}),
    dict(type='RandomChoiceResize', scales=train_scales, keep_ratio=True),
    # Leave the flip out if left and right matter. If up and down do not matter either:
    # prob=[0.25, 0.25, 0.25], direction=['horizontal', 'vertical', 'diagonal']
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),  # leave out if color tells the classes apart
    dict(type='PackDetInputs'),
]
test_pipeline = [
{_load_image(data)}
    dict(type='Resize', scale=test_scale, keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True{masks}),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'),
    ),
]
dataset = dict(data_root=data_root, metainfo=metainfo)
train_dataloader = dict(
    batch_size={plan.batch},  # fewer if memory runs out; then lower the learning rate as much
    num_workers={_workers(choice)},
    dataset=dict(
        ann_file={train.ann_file!r},
        data_prefix=dict(img={train.images!r}),
        filter_cfg=dict(filter_empty_gt=False),  # images without objects are worth seeing, too
        pipeline=train_pipeline,
        **dataset,
    ),
)
val_dataloader = {_detection_loader(val, choice)}
val_evaluator = dict(ann_file={_joined(data, val.ann_file)!r})
test_dataloader = {_detection_loader(test, choice) if test else 'val_dataloader'}
test_evaluator = {f'dict(ann_file={_joined(data, test.ann_file)!r})' if test else 'val_evaluator'}

{_on_schedule(plan, train)}
max_epochs = {plan.epochs}
train_cfg = dict(max_epochs=max_epochs, val_interval={every})
optim_wrapper = dict(optimizer=dict(lr={plan.rate}), clip_grad=dict(max_norm=5.0, norm_type=2))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end={_warm_up(plan)}),
    dict(type='CosineAnnealingLR', T_max=max_epochs, end=max_epochs, convert_to_iter_based=True),
]
auto_scale_lr = dict(base_batch_size={plan.batch})
default_hooks = dict(
    logger=dict(interval={min(50, max(1, math.ceil(train.total / plan.batch)))}),
    checkpoint=dict(interval={every}, max_keep_ckpts=2, save_best='coco/bbox_mAP'),
)
"""


def segmentation_config(data: Data, choice: Choice) -> str:
    """The text of a config for Semantic FPN."""
    train, val = data.splits['train'], data.splits['val']
    test = data.splits.get('test')
    plan = schedule('segmentation', train.total, choice)
    short, long = _sides(data.size, SHORT_SIDES['segmentation'][choice.gpu])
    crop = max(32, short // 32 * 32)
    return f"""\
{_heading('Semantic FPN', data, choice)}
_base_ = 'xcit_mm::segmentation/sem_fpn_xcit_{choice.arch}_{choice.patch_size}_80k.py'

# The data.{_on_names(data)}
data_root = {_root(data)!r}
metainfo = {_metainfo(data)}
num_classes = len(metainfo['classes'])
{_on_labels(data)}
reduce_zero_label = {bool(data.first)}
{_on_void(data)}
void = {data.void}

# The size of the pieces that are cut out for training, in pixels. The median image has
# {data.size[0]} x {data.size[1]}. Small or thin things need larger sizes.
crop_size = ({crop}, {crop})
scale = ({long}, {short})
train_pipeline = [
{_load_image(data)}
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=scale, ratio_range=(0.5, 2.0), keep_ratio=True),
    dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),  # leave out if left and right matter
    dict(type='PhotoMetricDistortion'),  # leave out if color tells the classes apart
    dict(type='PackSegInputs'),
]
test_pipeline = [
{_load_image(data)}
    dict(type='Resize', scale=scale, keep_ratio=True),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
model = dict(
    data_preprocessor=dict(size=crop_size),
    decode_head=dict(num_classes=num_classes),
{_backbone(choice)})
{_load_from(choice)}
dataset = dict(
    type='LabelFolder',
    data_root=data_root,
    metainfo=metainfo,
    seg_map_suffix={data.suffix!r},
    reduce_zero_label=reduce_zero_label,
    void=void,
)
train_dataloader = dict(
    batch_size={plan.batch},  # fewer if memory runs out; then lower the learning rate as much
    num_workers={_workers(choice)},
    dataset=dict(
{_label_split(train)}
        pipeline=train_pipeline,
        **dataset,
    ),
)
val_dataloader = {_segmentation_loader(val, choice)}
test_dataloader = {_segmentation_loader(test, choice) if test else 'val_dataloader'}

{_on_schedule(plan, train)}
max_iters = {plan.iterations}
train_cfg = dict(max_iters=max_iters, val_interval={plan.interval})
optim_wrapper = dict(optimizer=dict(lr={plan.rate}), clip_grad=dict(max_norm=5.0, norm_type=2))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end={_warm_up(plan)}),
    dict(type='PolyLR', power=1.0, by_epoch=False, begin={_warm_up(plan)}, end=max_iters),
]
auto_scale_lr = dict(base_batch_size={plan.batch})
default_hooks = dict(
    logger=dict(interval={min(50, plan.interval)}),
    checkpoint=dict(interval={plan.interval}, max_keep_ckpts=2, save_best='mIoU'),
)
"""


def _heading(model: str, data: Data, choice: Choice) -> str:
    counts = ', '.join(f'{split.total} for {name}' for name, split in data.splits.items())
    size = f'XCiT-{choice.arch.upper()}/{choice.patch_size}'
    start = f'from {choice.weights}' if choice.weights else 'from scratch'
    return _comment(
        f'{model} on {size}, {start}. Images: {counts}. Written by "{choice.command}"; change it '
        'as you like. docs/custom_data.md explains each part.'
    )


def _comment(text: str) -> str:
    options = {'break_on_hyphens': False, 'break_long_words': False}
    return '\n'.join(f'# {line}' for line in textwrap.wrap(text, 98, **options))  # type: ignore[arg-type]


def _load_image(data: Data) -> str:
    """The first step of a pipeline, or the first two for 16-bit images."""
    if data.bit_depth is None:
        return "    dict(type='LoadImageFromFile'),"
    most = 2**data.bit_depth - 1
    return f"""\
    # Files of 16 bits whose values have {data.bit_depth}: 0 to {most} becomes 0 to 255.
    dict(type='LoadImageFromFile', color_type={KEEP_DEPTH}),  # keeps 16 bits
    dict(type='ScaleTo8Bit', bit_depth={data.bit_depth}),"""


def _on_schedule(plan: Schedule, train: Split) -> str:
    return _comment(
        f'The schedule: {plan.epochs} times {train.total} images, about {plan.iterations} '
        'iterations. If the validation still improves at the end, train longer; if it gets worse '
        'while the loss falls, train less or add images.'
    )


def _root(data: Data) -> str:
    return f'{data.root.as_posix()}/'


def _joined(data: Data, path: str) -> str:
    return path if path.startswith('/') else _root(data) + path


def _metainfo(data: Data) -> str:
    line = f'dict(classes={tuple(data.classes)!r})'
    if len(line) < 85:
        return line
    names = pprint.pformat(tuple(data.classes), width=86, compact=True)
    return f'dict(\n    classes={textwrap.indent(names, " " * 12).lstrip()},\n)'


def _on_names(data: Data) -> str:
    return '' if data.named else ' Replace the names by those of your classes.'


def _on_labels(data: Data) -> str:
    if data.first:
        return _comment(
            'Classes are numbered from 1: label 1 is the first name, and 0 is ignored. If 0 is '
            'your first class, set this to False and name one class more.'
        )
    return _comment(
        'Classes are numbered from 0: label 0 is the first name. If yours start at 1 and 0 means '
        'unlabeled, set this to True and leave the first name out.'
    )


def _on_void(data: Data) -> str:
    text = 'Labels that are neither trained nor counted. 255 is always among them.'
    last = data.first + len(data.classes) - 1
    if assumed := data.assumed.get(f'--void {last}'):
        text += f' Assumed: {assumed}. If it is void, write [{last}, 255] and delete the last name.'
    return _comment(text)


def _detector(data: Data, choice: Choice) -> str:
    """The settings of the model; on a CPU with narrow heads, unless the weights have wide ones."""
    narrow = not (choice.gpu or choice.whole)
    box, mask = 'num_classes=num_classes', 'num_classes=num_classes'
    extractor = mask_extractor = others = ''
    if narrow:
        box += ', in_channels=channels, fc_out_channels=256'
        mask += ', in_channels=channels, conv_out_channels=channels'
        extractor = '        bbox_roi_extractor=dict(out_channels=channels),\n'
        mask_extractor = '        mask_roi_extractor=dict(out_channels=channels),\n'
        others = """    neck=dict(out_channels=channels),
    rpn_head=dict(in_channels=channels, feat_channels=channels),
    train_cfg=dict(rpn_proposal=dict(max_per_img=250), rcnn=dict(sampler=dict(num=128))),
    test_cfg=dict(rpn=dict(max_per_img=250)),
"""
    masks = f'{mask_extractor}        mask_head=dict({mask}),\n' if data.masks else ''
    heading = '# Narrow heads, for a CPU. On a machine with a GPU, this command writes wide ones.\n'
    return (
        (f'{heading}channels = 96\n' if narrow else '')
        + f"""model = dict(
{others}    roi_head=dict(
{extractor}        bbox_head=dict({box}),
{masks}    ),
{_backbone(choice)})"""
    )


def _detection_loader(split: Split, choice: Choice) -> str:
    return f"""dict(
    num_workers={_workers(choice)},
    dataset=dict(
        ann_file={split.ann_file!r},
        data_prefix=dict(img={split.images!r}),
        pipeline=test_pipeline,
        **dataset,
    ),
)"""


def _segmentation_loader(split: Split, choice: Choice) -> str:
    return f"""dict(
    num_workers={_workers(choice)},
    dataset=dict(
{_label_split(split)}
        pipeline=test_pipeline,
        **dataset,
    ),
)"""


def _label_split(split: Split) -> str:
    folders = f'data_prefix=dict(img_path={split.images!r}, seg_map_path={split.labels!r}),'
    lines = [f'ann_file={split.ann_file!r},', folders] if split.ann_file else [folders]
    return textwrap.indent('\n'.join(lines), ' ' * 8)


def _backbone(choice: Choice) -> str:
    if choice.weights is None or choice.whole:
        return '    backbone=dict(init_cfg=None),\n'
    return f'    backbone=dict(init_cfg=dict(checkpoint={choice.weights!r})),\n'


def _load_from(choice: Choice) -> str:
    if not choice.whole:
        return ''
    why = 'Weights of a whole model; layers that depend on the number of classes start anew.'
    return f'{_comment(why)}\nload_from = {choice.weights!r}\n'


def _sides(size: tuple[int, int], most: int) -> tuple[int, int]:
    """The short and the long side to which images are scaled: their own, within limits."""
    short = min(max(min(size), 96), most)
    return short, max(short, round(short * max(size) / min(size)))


def _workers(choice: Choice) -> int:
    return 4 if choice.gpu else 2


def _warm_up(plan: Schedule) -> int:
    return max(1, min(500, plan.iterations // 10))
