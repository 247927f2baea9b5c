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

from mmengine.runner import CheckpointLoader, load_checkpoint

from xcit_mm.engine.runner import GuardedRunner
from xcit_mm.weights import use_strict_reader

from ..limits import limited_memory
from ..tiny import backbone
from .tiny_run import train

SPARE = 2**30


def peak_memory():
    status = Path('/proc/self/status').read_text()
    return int(status.split('VmHWM:')[1].split()[0]) * 1024


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
        runner = train(folder.with_name('run'), kind=GuardedRunner, log_level='CRITICAL')
    load = functools.partial(load_checkpoint, backbone(), map_location='cpu')
    with limited_memory(SPARE):
        for file in files:
            flip(file, count, load)
        flip(Path(runner.work_dir) / 'epoch_1.pth', count, runner.resume)


if __name__ == '__main__':
    use_strict_reader()
    at_start = peak_memory()
    main(*sys.argv[1:])
    print(json.dumps({'memory': peak_memory() - at_start}))
