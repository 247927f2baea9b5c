"""Finds the parameters whose gradients are not finite."""

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .images import json_number
from .sharding import local


class GradientWatch:
    """Records the norm of each gradient as soon as backward has computed it.

    Afterwards is too late: clipping spreads one infinite gradient to all parameters. The norms stay
    on their device, and nothing waits for them until :meth:`faulty_groups` reads them.

    Args:
        model (nn.Module): Provides the names of the parameters.
        optimizer (Optimizer): Provides the parameters to watch.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        names = {id(p): name.removeprefix('module.') for name, p in model.named_parameters()}
        self.groups = [
            {p: names.get(id(p), '?') for p in group['params'] if p.requires_grad}
            for group in optimizer.param_groups
        ]
        self.norms: dict[torch.Tensor, torch.Tensor] = {}
        self.handles = [
            parameter.register_post_accumulate_grad_hook(self._record)
            for group in self.groups
            for parameter in group
        ]

    def _record(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self.norms[parameter] = torch.linalg.vector_norm(local(parameter.grad.detach()))

    def clear(self) -> None:
        """Start over before an iteration."""
        self.norms.clear()

    def remove(self) -> None:
        """Stop watching."""
        for handle in self.handles:
            handle.remove()

    def faulty_groups(self) -> list[dict]:
        """Return number, settings and parameters of each parameter group with a faulty gradient.

        After several backward passes without a step, this covers what they have accumulated.
        """
        if not self.norms or torch.stack(list(self.norms.values())).isfinite().all():
            return []
        found = []
        for number, names in enumerate(self.groups):
            norms = {name: json_number(self.norms.get(p, 0.0)) for p, name in names.items()}
            faulty = {name: norm for name, norm in norms.items() if isinstance(norm, str)}
            if faulty:
                settings = self.optimizer.param_groups[number]
                known: dict[str, Any] = {
                    key: settings[key] for key in ('lr', 'weight_decay') if key in settings
                }
                parameters = [dict(name=n, gradient_norm=norm) for n, norm in faulty.items()]
                found.append(dict(group=number, **known, parameters=parameters))
        return found
