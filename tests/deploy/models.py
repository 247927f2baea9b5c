"""Tiny models whose scores spread as those of trained models do.

Random heads give every box the same score, up to rounding: then rounding decides what is found.
"""

import torch
from torch import nn

from xcit_mm.inference.predictors import build_model, class_info

from ..tiny import recipe, write_recipe


def build(cfg):
    """Build a model with random weights and statistics, in eval mode."""
    model = build_model(cfg)
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.normal_(module.running_mean, 0, 0.1)
            nn.init.normal_(module.bias, 0, 0.1)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 2)
        elif name.endswith(('fc_reg', 'rpn_reg', 'rpn_cls', 'fc_cls', 'conv_logits')):
            nn.init.normal_(module.weight, 0, 0.3)
            nn.init.normal_(module.bias, 0, 0 if name.endswith('reg') else 1)
    for layer in model.backbone.layers:
        for gamma in (layer.gamma1, layer.gamma2, layer.gamma3):
            nn.init.normal_(gamma, 0.5, 0.3)
    model.dataset_meta = class_info(cfg, None)
    return model


def write(folder, head, patch_size):
    """Write the config and the weights of a tiny model; return both paths, and the model."""
    path = write_recipe(folder, head, patch_size, 'data')
    model = build(recipe(head, patch_size))
    checkpoint = folder / 'weights.pth'
    torch.save({'state_dict': model.state_dict(), 'meta': {}}, checkpoint)
    return path, checkpoint, model
