"""Convert XCiT weights of any published format to a safetensors file in this project's names.

No conversion is needed to use them: every published file loads as it is. This is for those who want
a clean file.
"""

import argparse
import sys

from xcit_mm.weights import CheckpointError, convert


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('input', help='a path, a web address, xcit://NAME or timm://NAME')
    parser.add_argument('output', help='the file to write, ending in .safetensors')
    parser.add_argument('--force', action='store_true', help='overwrite the output if it exists')
    return parser.parse_args()


def main() -> int:
    args = parse_args()
    try:
        print(convert(args.input, args.output, args.force))
    except (CheckpointError, OSError, ValueError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    return 0


if __name__ == '__main__':
    sys.exit(main())
