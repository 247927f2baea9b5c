"""Writes a config for a folder of a user's data: about a page that trains as it is."""

import math
import pprint
import textwrap
from dataclasses import dataclass, replace
from typing import Any

from xcit_mm_runtime.text import join_some

from .configs import KEEP_DEPTH, SLIDING
from .datasets.find import IGNORED, RARE, FoundData
from .datasets.fit import Fit, choose_fit
from .engine.pace import Pace
from .errors import UserError

# Images that training sees in all, from pretrained weights and from scratch, unless that is less
# than EPOCHS times each. docs/custom_data.md says where the numbers come from.
SEEN = {'detection': (10_000, 20_000), 'segmentation': (16_000, 40_000)}
EPOCHS = (12, 200)
# Objects that training sees in all: of images with many objects, fewer are enough.
OBJECTS_SEEN = (150_000, 300_000)
# From pretrained weights, and from scratch: half of the latter for networks larger than SMALL ones.
LEARNING_RATES = {'detection': (1e-4, 1e-3), 'segmentation': (1e-4, 2e-3)}
SMALL = ('n12', 't12')
# On a CPU and on a GPU.
BATCH_SIZES = {'detection': (2, 4), 'segmentation': (4, 8)}
# The sides of crops for segmentation, as parts of the short side, on a CPU and on a GPU.
CROPS = (0.8, 1.0)
# From scratch, fewer epochs than this learn more from images that are changed little.
FEW_EPOCHS = 50
# Classes of labels whose part of the pixels is printed.
SHOWN = 12
# The part of the time of a training that goes to validations, at most.
VALIDATING = 0.1
# The sizes of training, relative to that of the test.
FACTORS = (0.8, 0.9, 1.0, 1.1, 1.2)
# The longest short side in pixels, on a CPU and on a GPU.
SHORT_SIDES = {'detection': (360, 800), 'segmentation': (320, 512)}
WIDE_HEADS = """\
model = dict({sliding}
    rpn_head=dict(anchor_generator=anchors),
    train_cfg=dict(rpn_proposal=dict(nms_pre=2 * proposals, max_per_img=proposals)),
    test_cfg=limits,
    roi_head=dict(
        bbox_head=dict(num_classes=num_classes),{masks}
    ),"""
WIDE_MASKS = """
        mask_head=dict(type='NormalInitMaskHead', num_classes=num_classes),"""
NARROW_HEADS = """\
# Narrow heads, for a CPU; they learn faster with normalization. On a machine with a GPU, this
# command writes wide ones.
channels = 64
norm_cfg = dict(type='BN')
roi_layer = dict(type='RoIAlign', sampling_ratio=2)
model = dict({sliding}
    neck=dict(out_channels=channels, norm_cfg=norm_cfg),
    rpn_head=dict(in_channels=channels, feat_channels=channels, anchor_generator=anchors),
    train_cfg=dict(
        rpn_proposal=dict(nms_pre=2 * proposals, max_per_img=proposals),
        rcnn=dict(sampler=dict(num=128, pos_fraction=0.4)),
    ),
    test_cfg=limits,
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=channels, roi_layer=roi_layer),
        bbox_head=dict(
            type='ConvFCBBoxHead',
            num_classes=num_classes,
            in_channels=channels,
            num_shared_convs=2,
            num_shared_fcs=1,
            conv_out_channels=channels,
            fc_out_channels=256,
            norm_cfg=norm_cfg,
        ),{masks}
    ),"""
NARROW_MASKS = """
        mask_roi_extractor=dict(out_channels=channels, roi_layer=roi_layer),
        mask_head=dict(
            type='NormalInitMaskHead',
            num_classes=num_classes,
            in_channels=channels,
            num_convs=2,
            conv_out_channels=channels,
            norm_cfg=norm_cfg,
        ),"""
# The package, and what it imports only on request.
IMPORTS = """\
# These modules register what is used below.
custom_imports = dict(
    imports={modules},
    allow_failed_imports=False,
)
"""


@dataclass
class Choice:
    """The choices of the user, or else what fits the machine.

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
    def is_whole(self) -> bool:
        """True if the weights are those of a whole detector or segmentor."""
        return (self.weights or '').startswith(('xcit://coco/', 'xcit://ade20k/'))


@dataclass
class Schedule:
    """The length and the learning rate of a training.

    Args:
        batch (int): Images per iteration.
        epochs (int): How often each image is seen.
        iterations (int): The number of iterations.
        rate (float): The learning rate.
        validations (int): How often the validation images are looked at. Defaults to 10.
        comment (str): Where the length comes from. Defaults to '', the rule of the recipe.
    """

    batch: int
    epochs: int
    iterations: int
    rate: float
    validations: int = 10
    comment: str = ''

    @property
    def warm_up(self) -> int:
        """The iterations over which the learning rate rises."""
        return max(1, min(500, self.iterations // 10))


def schedule(task: str, images: int, choice: Choice, objects: float = 1) -> Schedule:
    """Return a schedule that fits the number of images, and of objects in each."""
    scratch = choice.weights is None
    batch = min(BATCH_SIZES[task][choice.gpu], images)
    seen = min(SEEN[task][scratch], OBJECTS_SEEN[scratch] / objects)
    epochs = min(max(round(seen / images), EPOCHS[0]), EPOCHS[1])
    iterations = math.ceil(images / batch) * epochs
    if iterations > 1000:
        iterations = round(iterations, -2)
    rate = LEARNING_RATES[task][scratch]
    if scratch and choice.arch not in SMALL:
        rate /= 2
    return Schedule(batch, epochs, iterations, rate)


def with_epochs(plan: Schedule, images: int, epochs: int) -> Schedule:
    """Return a schedule of so many epochs."""
    return replace(
        plan,
        epochs=epochs,
        iterations=max(2, math.ceil(images / plan.batch) * epochs),  # one to warm up
        validations=min(plan.validations, epochs),
        comment='The number of epochs was asked for.',
    )


def within_minutes(plan: Schedule, data: FoundData, minutes: float, pace: Pace) -> Schedule:
    """Return the schedule that takes some minutes at the pace of this machine, at least an epoch.

    At most a tenth of the time goes to validations.

    Args:
        plan (Schedule): A schedule of any length.
        data (FoundData): The dataset.
        minutes (float): The minutes.
        pace (Pace): As measured.
    """
    per_epoch = math.ceil(data.splits['train'].total / plan.batch)
    validation = data.splits['val'].total * pace.image
    validations = min(10, max(1, int(VALIDATING * 60 * minutes / validation)))
    seconds = 60 * minutes - validations * validation
    epochs = max(1, int(seconds / (per_epoch * pace.iteration)))
    plan = replace(
        plan,
        epochs=epochs,
        iterations=epochs * per_epoch,
        validations=min(validations, epochs),
    )
    expected = expected_minutes(plan, data, pace)
    comment = (
        f'Measured by "init": {pace.iteration:.2g} s per iteration and {pace.image:.2g} s per '
        f'image of a validation, so it takes about {expected:.1f} minutes on that machine.'
    )
    if expected > minutes:
        comment += f' The {minutes:g} minutes that were asked for are too few for an epoch.'
    return replace(plan, comment=comment)


def expected_minutes(plan: Schedule, data: FoundData, pace: Pace) -> float:
    """Return the minutes that a schedule takes at the pace of a machine, with its validations."""
    validations = plan.validations * data.splits['val'].total * pace.image
    return (plan.iterations * pace.iteration + validations) / 60


def describe_cost(data: FoundData, plan: Schedule, pace: Pace | None) -> str:
    """Say how long a training takes, and how much memory."""
    length = f'{plan.iterations} iterations of {plan.batch} images'
    if pace is None:
        return f'{length}; time and memory were not measured'
    minutes = expected_minutes(plan, data, pace)
    time = f'{minutes:.1f} minutes' if minutes < 90 else f'{minutes / 60:.1f} hours'
    memory = '' if pace.memory is None else f', {pace.memory:.1f} GB of memory'
    return f'{length}, about {time} on this machine{memory}'


def fit_detector(data: FoundData, gpu: bool, patch_size: int | None, is_whole: bool) -> Fit:
    """Return the settings that fit the objects of a dataset.

    Args:
        data (FoundData): The dataset.
        gpu (bool): Whether training runs on a GPU.
        patch_size (int, optional): 8 or 16, if that is decided.
        is_whole (bool): Whether training starts from the weights of a whole detector.

    Raises:
        UserError: If no image has a size, or no object has a box.
    """
    if data.objects is not None and not len(data.objects.images):
        raise UserError(f'The annotations in {data.root} do not tell the size of any image.')
    if data.objects is None or not len(data.objects.boxes):
        raise UserError(f'None of the objects in {data.root} has a box with a size.')
    short, long = _sides(data.size, SHORT_SIDES['detection'][gpu])
    return choose_fit(data.objects, (long, short), gpu, patch_size, is_whole)


def describe_detector(data: FoundData, plan: Schedule, fit: Fit) -> list[str]:
    """Return a line for each setting that follows from the objects, with the figure behind it."""
    images = data.splits['train'].total
    why = f'{images} images; training sees {fit.per_view:.0f} objects at a time'
    scales = ' and '.join(map(str, fit.scales))
    return [
        f'patch size {fit.patch_size}: {fit.reasons["patch"]} at the usual size of images',
        f'sizes: {fit.reasons["size"]}',
        f'anchors of scale {scales} and {len(fit.ratios)} ratios: {fit.reasons["anchors"]}',
        f'{fit.proposals} proposals, {fit.detections} detections: {fit.reasons["limits"]}',
        f'{plan.epochs} epochs, about {plan.iterations} iterations: {plan.comment or why}',
    ]


def describe_segmentor(
    data: FoundData, choice: Choice, plan: Schedule
) -> tuple[list[dict[str, str]], list[str]]:
    """Return the rows of a table of the labels, and a line for each setting that follows."""
    short, long = _sides(data.size, SHORT_SIDES['segmentation'][choice.gpu])
    crop = _crop_side(short, choice.gpu)
    order = sorted(zip(data.shares, data.classes, strict=True), reverse=True)
    shares = [f'{name} {share:.1%}' for share, name in order]
    counts = ', '.join(f'{split.total} {name}' for name, split in data.splits.items())
    width, height = data.size
    sizes = f'tested at about {long} x {short}, trained on crops of {crop} x {crop}'
    losses = 'cross entropy and Lovász' if data.rare_classes else 'cross entropy'
    table = [
        ('images', counts, ''),
        ('image sizes', f'median {width} x {height}', sizes),
        ('classes', str(len(shares)), f'loss: {losses}'),
        *(('', share, '') for share in shares[:SHOWN]),
    ]
    if len(shares) > SHOWN:
        table.append(('', f'and {len(shares) - SHOWN} more', ''))
    rows = [{'': row[0], 'data': row[1], 'config': row[2]} for row in table]
    images, limit = data.splits['train'].total, SHORT_SIDES['segmentation'][choice.gpu]
    rare = join_some(data.rare_classes or ['no class'], SHOWN)
    changed = 'scales from 0.5 to 2, and colors'
    if _is_short(choice, plan):
        changed = f'little, since it is from scratch and shorter than {FEW_EPOCHS} epochs'
    return rows, [
        f'sizes: the short side of the median image, at most {limit} pixels on this machine',
        f'loss, {losses}: less than {RARE:.0%} of the pixels are of {rare}',
        f'augmentation: {changed}',
        f'{plan.epochs} epochs, about {plan.iterations} iterations: '
        f'{plan.comment or f"{images} images"}',
    ]


def detection_config(data: FoundData, choice: Choice, fit: Fit, plan: Schedule) -> str:
    """Return the text of a config: Mask R-CNN if every object has a mask, else Faster R-CNN."""
    head, name = ('mask_rcnn', 'Mask R-CNN') if data.masks else ('faster_rcnn', 'Faster R-CNN')
    masks = ', with_mask=True' if data.masks else ''
    # The weights of a whole detector have wide heads.
    is_wide = choice.gpu or choice.is_whole
    mask_heads = WIDE_MASKS if is_wide else NARROW_MASKS
    sliding = f"\n    type='{SLIDING}{'Mask' if data.masks else 'Faster'}RCNN',"
    heads = (WIDE_HEADS if is_wide else NARROW_HEADS).format(
        masks=mask_heads if data.masks else '', sliding=sliding if fit.crop else ''
    )
    modules = ['xcit_mm'] + ['xcit_mm.models.mask_head'] * data.masks
    modules += ['xcit_mm.models.sliding_windows'] if fit.crop else []
    imports = IMPORTS.format(modules=modules) if len(modules) > 1 else ''
    decay = "type='CosineAnnealingLR', T_max=max_epochs, end=max_epochs, convert_to_iter_based=True"
    evaluators = {
        name: f'dict(ann_file={str(data.root / split.ann_file)!r})'
        for name, split in data.splits.items()
    }
    return f"""\
{_heading(name, data, choice)}
_base_ = 'xcit_mm::detection/{head}_xcit_{choice.arch}_{choice.patch_size}_1x.py'
{imports}
# The data. The order of the classes is that of the annotation files.
{_data(data)}
{_limits(fit)}
{heads}
{_backbone(choice)}

{_sizes(data, fit)}
train_pipeline = [
{_load_image(data)}
    dict(type='LoadAnnotations', with_bbox=True{masks}),
    {_resize_randomly(data, fit)}
    # Leave the flip out if left and right matter. If up and down do not matter either:
    # prob=[0.25, 0.25, 0.25], direction=['horizontal', 'vertical', 'diagonal']
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),  # leave out if color tells the classes apart
    dict(type='PackDetInputs'),
]
test_pipeline = [
{_load_image(data)}
    dict(type='Resize', {_argument(fit)}=test_scale, keep_ratio=True),
    dict(type='LoadAnnotations', with_bbox=True{masks}),
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'),
    ),
]
dataset = dict(data_root=data_root, metainfo=metainfo)
{_loaders(data, choice, plan)}
val_evaluator = {evaluators['val']}
test_evaluator = {evaluators.get('test', 'val_evaluator')}

{_training(plan, data, 'epochs', decay, 'coco/bbox_mAP')}"""


def _limits(fit: Fit) -> str:
    """Return the lines of a config that depend on the sizes and numbers of objects."""
    reasons = fit.reasons
    window, sliding = '', ''
    if fit.crop:
        why = _comment(
            'The side of the crops in training, and of the windows that slide over an image in '
            'tests and "infer", in pixels of the image as it is seen. Windows overlap by the size '
            'of the larger objects, so that each is whole in one of them.'
        )
        window = f'{why}\nwindow = {fit.crop}\n'
        sliding = f'\n    windows=dict(size=window, overlap={fit.overlap}),'
    return f"""
{window}{_comment(f'Limits per image: {reasons["limits"]}.')}
proposals, detections = {fit.proposals}, {fit.detections}
limits = dict(
    rpn=dict(nms_pre={max(1000, fit.proposals)}, max_per_img=proposals),
    rcnn=dict(max_per_img=detections),{sliding}
)
{_comment(f'Anchors: at the test scale, {reasons["anchors"]}.')}
anchors = dict(scales={fit.scales}, ratios={fit.ratios})
"""


def _argument(fit: Fit) -> str:
    return next(name for name in ('scale', 'scale_factor') if name in fit.resize)


def _sizes(data: FoundData, fit: Fit) -> str:
    """Return the lines of a config that say at which sizes images are seen."""
    width, height = data.size
    size = fit.resize[_argument(fit)]
    part = ''
    if _argument(fit) == 'scale':
        text = 'width and height, kept in proportion.'
        sizes: list[Any] = [tuple(round(side * factor) for side in size) for factor in FACTORS]
    else:
        text = 'a factor on the width and height of its file.'
        sizes = [round(size * factor, 2) for factor in FACTORS]
        part = '\npart = int(window / min(train_scales)) + 1' if fit.crop else ''
    comment = _comment(
        f'The size at which an image is seen: {text} The median image has {width} x {height} '
        f'pixels. {fit.reasons["size"]}. If objects are smaller than {fit.patch_size} pixels, use '
        'larger sizes.'
    )
    return f'{comment}\ntest_scale = {size}\ntrain_scales = {sizes}{part}'


def _resize_randomly(data: FoundData, fit: Fit) -> str:
    """Return the steps of the training pipeline that choose what is seen of an image."""
    if _argument(fit) == 'scale':
        text = "dict(type='RandomChoiceResize', scales=train_scales, keep_ratio=True),"
    else:
        text = """\
dict(
        type='RandomChoice',
        transforms=[
            [dict(type='Resize', scale_factor=factor, keep_ratio=True)] for factor in train_scales
        ],
    ),"""
    if not fit.crop:
        return text
    masks = ', recompute_bbox=True' if data.masks else ''
    crop = f"dict(type='RandomCrop', crop_size=({{0}}, {{0}}), allow_negative_crop=True{masks}),"
    if _argument(fit) == 'scale_factor':
        text = f"""\
# First a part that is large enough at each size, since masks take long to resize.
    {crop.format('part')}
    {text}"""
    return f"""\
{text}
    {crop.format('window')}
    dict(type='FilterAnnotations', keep_empty=False),  # objects that are not in the crop"""


def segmentation_config(data: FoundData, choice: Choice, plan: Schedule) -> str:
    """Return the text of a config for Semantic FPN."""
    short, long = _sides(data.size, SHORT_SIDES['segmentation'][choice.gpu])
    crop = _crop_side(short, choice.gpu)
    decay = "type='PolyLR', power=1.0, by_epoch=False, begin=warm_up, end=max_iters"
    setting = 'values=gray_levels' if data.values else 'reduce_zero_label=reduce_zero_label'
    return f"""\
{_heading('Semantic FPN', data, choice)}
_base_ = 'xcit_mm::segmentation/sem_fpn_xcit_{choice.arch}_{choice.patch_size}_80k.py'

# The data.{'' if data.named else ' Replace the names by those of your classes.'}
{_data(data)}
{_on_labels(data)}
{_on_void(data)}
void = {data.void}

# The size of the pieces that are cut out for training, in pixels. The median image has
# {data.size[0]} x {data.size[1]}. Small or thin things need larger sizes.
crop_size = ({crop}, {crop})
scale = ({long}, {short})
train_pipeline = [
{_load_image(data)}
    dict(type='LoadAnnotations'),
{_change_images(choice, plan)}
    dict(type='PackSegInputs'),
]
test_pipeline = [
{_load_image(data)}
    dict(type='Resize', scale=scale, keep_ratio=True),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
{_segmentor(data, choice)}
{_backbone(choice)}

dataset = dict(
    type='LabelFolder',
    data_root=data_root,
    metainfo=metainfo,
    seg_map_suffix={data.suffix!r},
    {setting},
    void=void,
)
{_loaders(data, choice, plan)}

{_training(plan, data, 'iters', decay, 'mIoU')}"""


def _crop_side(short: int, gpu: bool) -> int:
    """Return the side of the crops of a segmentor's training, a multiple of 32.

    Args:
        short (int): The short side of images.
        gpu (bool): Whether training runs on a GPU. On a CPU, smaller crops are seen more often.
    """
    return max(32, int(short * CROPS[gpu]) // 32 * 32)


def _is_short(choice: Choice, plan: Schedule) -> bool:
    return choice.weights is None and plan.epochs < FEW_EPOCHS


def _change_images(choice: Choice, plan: Schedule) -> str:
    """Return the steps of a segmentor's training pipeline that change images at random."""
    few = _is_short(choice, plan)
    ratios, why = (0.5, 2.0), ''
    if few:
        ratios, why = (0.8, 1.25), '  # in a longer training: (0.5, 2.0)'
    color = "dict(type='PhotoMetricDistortion'),  # "
    color += 'for a longer training' if few else 'leave out if color tells the classes apart'
    return f"""\
    dict(
        type='RandomResize',
        scale=scale,
        ratio_range={ratios},{why}
        keep_ratio=True,
    ),
    dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),  # leave out if left and right matter
    {'# ' if few else ''}{color}"""


def _segmentor(data: FoundData, choice: Choice) -> str:
    """Return the first lines of the model: its widths and its loss."""
    widths, narrow = '', ''
    if not (choice.gpu or choice.is_whole):  # the weights of a whole segmentor have wide heads
        widths = '\n        in_channels=[64] * 4,\n        channels=64,'
        narrow = """
    # Narrow, for a CPU. On a machine with a GPU, this command writes a wide model.
    neck=dict(out_channels=64, norm_cfg=dict(type='BN')),"""
    losses = ''
    if rare := data.rare_classes:
        losses = f"""
        # The Lovász loss counts every class alike, as mIoU does.
{textwrap.indent(_comment(f'Below {RARE:.0%} of the pixels: {", ".join(rare)}.', 90), ' ' * 8)}
        loss_decode=[
            dict(type='CrossEntropyLoss'),
            dict(type='LovaszLoss', loss_type='multi_class', reduction='none'),
        ],"""
    return f"""\
model = dict(
    data_preprocessor=dict(size=crop_size),{narrow}
    decode_head=dict({widths}
        num_classes=num_classes,{losses}
    ),"""


def _sides(size: tuple[int, int], most: int) -> tuple[int, int]:
    """Return the short and the long side to which images are scaled: their own, within limits."""
    short = min(max(min(size), 96), most)
    return short, max(short, round(short * max(size) / min(size)))


def _comment(text: str, width: int = 98) -> str:
    options = {'break_on_hyphens': False, 'break_long_words': False}
    return '\n'.join(f'# {line}' for line in textwrap.wrap(text, width, **options))  # type: ignore[arg-type]


def _heading(model: str, data: FoundData, choice: Choice) -> str:
    counts = ', '.join(f'{split.total} for {name}' for name, split in data.splits.items())
    size = f'XCiT-{choice.arch.upper()}/{choice.patch_size}'
    start = f'from {choice.weights}' if choice.weights else 'from scratch'
    return _comment(
        f'{model} on {size}, {start}. Images: {counts}. Written by "{choice.command}"; change it '
        'as you like. docs/custom_data.md explains each part.'
    )


def _data(data: FoundData) -> str:
    metainfo = f'dict(classes={tuple(data.classes)!r})'
    if len(metainfo) >= 85:
        names = pprint.pformat(tuple(data.classes), width=86, compact=True)
        metainfo = f'dict(\n    classes={textwrap.indent(names, " " * 12).lstrip()},\n)'
    return f"""\
data_root = {f'{data.root.as_posix()}/'!r}
metainfo = {metainfo}
num_classes = len(metainfo['classes'])"""


def _on_labels(data: FoundData) -> str:
    """Return the line that says what labels mean, and why."""
    if data.values:
        why = 'Labels are gray levels, not numbers of classes: the value of each class, in order.'
        return f'{_comment(why)}\ngray_levels = {data.values}'
    if data.first:
        why = (
            'Classes are numbered from 1: label 1 is the first name, and 0 is ignored. If 0 is '
            'your first class, set this to False and name one class more.'
        )
    else:
        why = (
            'Classes are numbered from 0: label 0 is the first name. If yours start at 1 and 0 '
            'means unlabeled, set this to True and leave the first name out.'
        )
    return f'{_comment(why)}\nreduce_zero_label = {bool(data.first)}'


def _on_void(data: FoundData) -> str:
    text = 'Labels that are neither trained nor counted.'
    text += '' if IGNORED in data.values else ' 255 is always among them.'
    last = data.values[-1] if data.values else data.first + len(data.classes) - 1
    if assumed := data.assumed.get(f'--void {last}'):
        remedy = 'move it from gray_levels to here' if data.values else f'write [{last}, 255]'
        text += f' Assumed: {assumed}. If it is void, {remedy} and delete the last name.'
    return _comment(text)


def _backbone(choice: Choice) -> str:
    """Return the last lines of the model: which weights it starts from."""
    if choice.is_whole:
        why = 'Weights of a whole model; layers that depend on the number of classes start anew.'
        return f'    backbone=dict(init_cfg=None),\n)\n# {why}\nload_from = {choice.weights!r}'
    init_cfg = f'dict(checkpoint={choice.weights!r})' if choice.weights else None
    return f'    backbone=dict(init_cfg={init_cfg}),\n)'


def _load_image(data: FoundData) -> str:
    """Return the first step of a pipeline, or the first two for 16-bit images."""
    if data.bit_depth is None:
        return "    dict(type='LoadImageFromFile'),"
    most = 2**data.bit_depth - 1
    return f"""\
    # Files of 16 bits whose values have {data.bit_depth}: 0 to {most} becomes 0 to 255.
    dict(type='LoadImageFromFile', color_type={KEEP_DEPTH}),  # keeps 16 bits
    dict(type='ScaleTo8Bit', bit_depth={data.bit_depth}),"""


def _loaders(data: FoundData, choice: Choice, plan: Schedule) -> str:
    """Return the three data loaders."""
    workers = f'    num_workers={4 if choice.gpu else 2},'
    batch = f'    batch_size={plan.batch},  # fewer if memory runs out; then lower the rate as much'
    # Without min_size, mmdet leaves out images of fewer than 32 pixels.
    with_empty = (
        '        # images without objects, too\n'
        '        filter_cfg=dict(filter_empty_gt=False, min_size=1),'
    )
    lines = []
    for name, split in data.splits.items():
        prefix = f'img={split.images!r}'
        if split.labels:
            prefix = f'img_path={split.images!r}, seg_map_path={split.labels!r}'
        is_train = name == 'train'
        lines += [
            f'{name}_dataloader = dict(',
            *([batch] if is_train else []),
            workers,
            '    dataset=dict(',
            *([f'        ann_file={split.ann_file!r},'] if split.ann_file else []),
            f'        data_prefix=dict({prefix}),',
            *([with_empty] if is_train and not split.labels else []),
            f'        pipeline={"train" if is_train else "test"}_pipeline,',
            '        **dataset,\n    ),\n)',
        ]
    return '\n'.join(
        lines if 'test' in data.splits else [*lines, 'test_dataloader = val_dataloader']
    )


def _training(plan: Schedule, data: FoundData, unit: str, decay: str, metric: str) -> str:
    """Return the schedule, in epochs or iterations, with its validations."""
    images = data.splits['train'].total
    length = {'epochs': plan.epochs, 'iters': plan.iterations}[unit]
    every = math.ceil(length / plan.validations)
    logged = math.ceil(images / plan.batch) if unit == 'epochs' else every
    sentences = [
        f'The schedule: {plan.epochs} times {images} images, about {plan.iterations} iterations.',
        plan.comment,
        f'To train longer or less, change max_{unit}: the learning rate follows. If the validation '
        'still improves at the end, train longer; if it gets worse while the loss falls, train '
        'less or add images.',
    ]
    comment = _comment(' '.join(filter(None, sentences)))
    warm_up = str(plan.warm_up)
    if unit == 'iters':
        warm_up = f'max(1, min({warm_up}, max_iters // 10))'
    return f"""\
{comment}
max_{unit} = {length}
warm_up = {warm_up}  # iterations
train_cfg = dict(max_{unit}=max_{unit}, val_interval={every})
optim_wrapper = dict(optimizer=dict(lr={plan.rate}), clip_grad=dict(max_norm=5.0, norm_type=2))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=warm_up),
    dict({decay}),
]
auto_scale_lr = dict(base_batch_size={plan.batch})
default_hooks = dict(
    logger=dict(interval={min(50, logged)}),
    checkpoint=dict(interval={every}, max_keep_ckpts=2, save_best={metric!r}),
)
"""
