"""Reads files in a separate process with little memory, so that tests notice a crash.

``guarded_reader.py read FOLDER ...`` reads every file. ``guarded_reader.py flip COUNT FOLDER``
loads each file into a network COUNT times, each time with another bit flipped; then it trains a
model and resumes from its checkpoint in the same way. It prints one line of JSON per read: the
file, the kind of error if there was one, and its message. The last line is how far memory rose at
its peak.
"""

import contextlib
import functools
import json
import os
import random
import sys
from pathlib import Path

import torch
from mmengine.model import BaseModel
from mmengine.runner import CheckpointLoader, load_checkpoint

from tests.limits import limited_memory
from xcit_mm.engine.runner import GuardedRunner
from xcit_mm.models import XCiT
from xcit_mm.weights import use_strict_reader

SPARE = 2**30


def peak_memory():
    status = Path('/proc/self/status').read_text()
    return int(status.split('VmHWM:')[1].split()[0]) * 1024


def network():
    torch.manual_seed(0)
    return XCiT(dict(embed_dims=16, depth=2, num_heads=2), out_indices=(0, 1), strides=(4, 8))


class Linear(BaseModel):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, inputs, mode='tensor'):
        return dict(loss=self.linear(torch.stack(inputs)).sum())


def train(folder):
    """A runner after one epoch."""
    data = dict(
        dataset=[dict(inputs=torch.ones(4))] * 4,
        batch_size=2,
        sampler=dict(type='DefaultSampler', shuffle=False),
    )
    runner = GuardedRunner(
        Linear(),
        str(folder),
        train_dataloader=data,
        train_cfg=dict(by_epoch=True, max_epochs=1),
        optim_wrapper=dict(optimizer=dict(type='AdamW', lr=0.1)),
        param_scheduler=dict(type='LinearLR'),
        log_level='CRITICAL',
    )
    runner.train()
    return runner


def attempt(path, name, read):
    result = {'what': name, 'error': None, 'text': ''}
    try:
        with open(os.devnull, 'w') as nowhere, contextlib.redirect_stdout(nowhere):
            read(str(path))
    except Exception as error:
        result |= {'error': type(error).__name__, 'text': str(error)}
    print(json.dumps(result), flush=True)


def flip(path, count, read):
    chance = random.Random(1)
    content = path.read_bytes()
    flipped = path.with_name(f'flipped_{path.name}')
    for _ in range(count):
        bit = chance.randrange(8 * len(content))
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        flipped.write_bytes(changed)
        attempt(flipped, path.name, read)
    flipped.unlink()


def main(command, *arguments):
    files = sorted(Path(arguments[-1]).iterdir())
    if command == 'read':
        load = functools.partial(CheckpointLoader.load_checkpoint, map_location='cpu')
        with limited_memory(SPARE):
            for file in files:
                attempt(file, file.name, load)
        return
    count, folder = int(arguments[0]), Path(arguments[1])
    with contextlib.redirect_stdout(sys.stderr):
        runner = train(folder.with_name('run'))
    load = functools.partial(load_checkpoint, network(), map_location='cpu')
    with limited_memory(SPARE):
        for file in files:
            flip(file, count, load)
        flip(folder.with_name('run') / 'epoch_1.pth', count, runner.resume)


if __name__ == '__main__':
    use_strict_reader()
    at_start = peak_memory()
    main(*sys.argv[1:])
    print(json.dumps({'memory': peak_memory() - at_start}))
