"""What is known of an iteration that was not finite, for study: as JSON and in words."""

import math
from typing import Any

import torch
from mmengine.optim import OptimWrapper
from torch import nn


def faulty_groups(wrapper: OptimWrapper, model: nn.Module) -> list[dict]:
    """The parameters whose gradient is not finite, by group of the optimizer.

    Args:
        wrapper (OptimWrapper): After backward, before the gradient is clipped.
        model (nn.Module): Has the parameters' names.

    Returns:
        list[dict]: Number, settings and parameters of each group at fault.
    """
    entries = [
        (number, parameter, parameter.grad)
        for number, group in enumerate(wrapper.optimizer.param_groups)
        for parameter in group['params']
        if parameter.grad is not None
    ]
    if not entries:
        return []
    finite = torch.stack(torch._foreach_norm([grad for _, _, grad in entries])).isfinite()
    if finite.all():
        return []
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    groups: dict[int, dict] = {}
    for (number, parameter, grad), is_good in zip(entries, finite.tolist(), strict=True):
        if is_good:
            continue
        settings = wrapper.optimizer.param_groups[number]
        known = {key: settings[key] for key in ('lr', 'weight_decay') if key in settings}
        group = groups.setdefault(number, dict(group=number, **known, parameters=[]))
        count = int((~grad.isfinite()).sum())
        name = names[id(parameter)].removeprefix('module.')
        group['parameters'].append(dict(name=name, non_finite=count, of=grad.numel()))
    return list(groups.values())


def describe_images(batch: Any) -> list[dict]:
    """Path, shape and range of each image of a batch, as far as it has them."""
    batch = batch if isinstance(batch, dict) else {}
    samples, inputs = batch.get('data_samples'), batch.get('inputs')
    if not isinstance(samples, (list, tuple)) or not isinstance(inputs, (list, torch.Tensor)):
        return []
    return [
        dict(
            path=getattr(sample, 'metainfo', {}).get('img_path'),
            shape=list(image.shape),
            finite=bool(image.isfinite().all()),
            range=[json_number(image.min()), json_number(image.max())],
        )
        for sample, image in zip(samples, inputs, strict=False)
    ]


def json_number(value: Any) -> float | str:
    """A number that JSON can hold: it has no NaN and no infinity."""
    number = float(torch.as_tensor(value).detach())
    return number if math.isfinite(number) else str(number)


def in_words(report: dict) -> str:
    losses = [name for name, value in report['losses'].items() if isinstance(value, str)]
    groups = report['parameter_groups']
    names = [parameter['name'] for group in groups for parameter in group['parameters']]
    images = sorted(report['images'], key=lambda image: image['finite'])
    text = f'Iteration {report["iteration"]} (process {report["rank"]}) is not finite:'
    if losses:
        text += f' losses {some(losses)};'
    if names:
        numbers = [str(group['group']) for group in groups]
        # Backward spreads a fault to earlier layers: the last one is nearest to its origin.
        text += f' gradients of {some(names[::-1])} in parameter groups {some(numbers[::-1])};'
    shown = [f'{i["path"]}{"" if i["finite"] else " (pixels not finite)"}' for i in images]
    return f'{text} images {some(shown) or "unknown"}.'


def some(names: list[str], count: int = 4) -> str:
    """The first names, and how many more there are."""
    more = f' and {len(names) - count} more' if len(names) > count else ''
    return ', '.join(names[:count]) + more
