"""``xcit-mm serve``: serve an exported model over HTTP."""

from __future__ import annotations

import argparse
import socket
import sys

from .options import positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        'Serve an exported model over HTTP: POST an image to /predict, as the body or in a form, '
        'or open the address in a browser and drop an image there. /docs describes the interface; '
        '/health, /ready and /metrics are for Kubernetes and Prometheus. It has neither encryption '
        'nor passwords: put it behind a proxy that has them. Needs neither PyTorch nor OpenMMLab. '
        'Ctrl-C or SIGTERM ends it, after it has answered what it has accepted.'
    )
    parser.add_argument('model', metavar='MODEL', help='a model that "xcit-mm export" wrote')
    parser.add_argument(
        '--host', default='127.0.0.1', help='default: %(default)s, this machine only'
    )
    parser.add_argument(
        '--port', type=int, default=8000, help='default: %(default)s; 0 for any that is free'
    )
    parser.add_argument(
        '--threads',
        type=positive,
        metavar='N',
        help='processors for the model (default: all of them)',
    )
    limits = parser.add_argument_group('limits')
    for name, default, text in (
        ('--workers', 2, 'images that are processed at a time'),
        ('--queue', 64, 'requests that are read, wait or run; others get status 503'),
        ('--max-bytes', 20_000_000, 'size of the largest file'),
        ('--max-pixels', 40_000_000, 'size of the largest image'),
    ):
        limits.add_argument(
            name,
            type=positive,
            default=default,
            metavar='N',
            help=f'{text} (default: %(default)s)',
        )


def run(args: argparse.Namespace) -> int:
    from xcit_mm_runtime.errors import UserError

    try:
        return serve(args)
    except UserError as error:
        message = str(error)
    except OSError as error:
        message = f'Cannot listen on {args.host}, port {args.port}: {error.strerror}. Give others.'
    except KeyboardInterrupt:  # uvicorn has answered what it had accepted
        return 0
    print(f'error: {message}', file=sys.stderr)
    return 2


def serve(args: argparse.Namespace) -> int:
    """Serve until a signal ends it."""
    from xcit_mm_runtime import load
    from xcit_mm_runtime.errors import UserError

    try:
        import uvicorn

        from xcit_mm_runtime.server import Limits, create_app, server_options
    except ImportError as error:
        raise UserError(
            f'serve needs FastAPI ({error}): pip install fastapi uvicorn python-multipart '
            'prometheus-client'
        ) from None
    limits = Limits(args.workers, args.queue, args.max_bytes, args.max_pixels)
    app = create_app(load(args.model, args.threads or 0), limits)
    family = socket.AF_INET6 if ':' in args.host else socket.AF_INET
    with socket.create_server((args.host, args.port), family=family, backlog=1024) as listener:
        host = f'[{args.host}]' if ':' in args.host else args.host
        address = f'http://{host}:{listener.getsockname()[1]}'
        print(f'serving {args.model} on {address}', flush=True)
        config = uvicorn.Config(app, log_level='warning', **server_options(limits))
        uvicorn.Server(config).run(sockets=[listener])
    return 0
