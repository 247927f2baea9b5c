"""Convert weights to a clean safetensors file."""

import argparse

from xcit_mm.errors import UserError
from xcit_mm.weights import convert

from .common import command


@command('convert')
def main(args: argparse.Namespace) -> int:
    try:
        print(convert(args.input, args.output, args.force))
    except ValueError as error:
        raise UserError(str(error)) from None
    return 0
