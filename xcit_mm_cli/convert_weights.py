"""``xcit-mm convert-weights``: convert weights to a clean safetensors file."""

import argparse

from .options import add_flag


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Convert XCiT weights of any published format to a safetensors file with this project's "
        'names. This is only needed if you want a clean file: every published file loads as it is.'
    )
    parser.add_argument('input', help='a path, a web address, xcit://NAME or timm://NAME')
    parser.add_argument('output', help='the file to write, ending in .safetensors')
    add_flag(parser, '--force', 'overwrite the output if it exists')


def run(args: argparse.Namespace) -> int:
    from xcit_mm.errors import UserError
    from xcit_mm.weights import convert

    try:
        print(convert(args.input, args.output, args.force))
    except ValueError as error:
        raise UserError(str(error)) from None
    return 0
