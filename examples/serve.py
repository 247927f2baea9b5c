"""Serves an exported model over HTTP: ``python examples/serve.py model.onnx --port 8000``.

The server is that of the standard library: it needs nothing beyond what runs the model, and one
model on one machine gains nothing from an asynchronous one, as inference takes all processors.

    curl -X POST -T photo.jpg -H 'Content-Type: image/jpeg' localhost:8000/predict
    curl localhost:8000/health

It listens on this machine only, unless ``--host`` says otherwise, and has no passwords or
encryption: put it behind a proxy that has them.
"""

import argparse
import contextlib
import http.server
import io
import json
import socket
import sys
import threading
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import numpy as np
from PIL import Image

import xcit_mm_runtime
from xcit_mm_runtime import Detections, ImageError, Model, ModelError, rle
from xcit_mm_runtime.inputs import decode

FORMATS = {'image/jpeg': 'JPEG', 'image/png': 'PNG', 'image/webp': 'WEBP', 'image/bmp': 'BMP'}
ROUTES = {'/health': 'GET', '/predict': 'POST'}


class Refused(Exception):
    """A request that gets an error: a status and a sentence."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class Server(http.server.ThreadingHTTPServer):
    """A model behind a port.

    Args:
        address (tuple[str, int]): Host and port; port 0 for any that is free.
        model (Model): The model.
        max_bytes (int): Size of the largest file. Defaults to 20 MB.
        max_pixels (int): Size of the largest image. Defaults to 40 megapixels.
        max_clients (int): Connections at a time. Defaults to 32.
        read_seconds (float): How long a client may take to send a request. Defaults to 20.
        wait_seconds (float): How long a request waits for those before it. Defaults to 30.
    """

    daemon_threads = True

    def __init__(
        self,
        address: tuple[str, int],
        model: Model,
        max_bytes: int = 20_000_000,
        max_pixels: int = 40_000_000,
        max_clients: int = 32,
        read_seconds: float = 20,
        wait_seconds: float = 30,
    ) -> None:
        super().__init__(address, Handler)
        self.model, self.max_bytes, self.max_pixels = model, max_bytes, max_pixels
        self.read_seconds, self.wait_seconds = read_seconds, wait_seconds
        # One image at a time: it already uses all processors, and memory stays bounded.
        self.turn = threading.Lock()
        self.clients = threading.BoundedSemaphore(max_clients)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self.clients.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            request.settimeout(1)
            with request:
                request.sendall(b'HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n')

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.clients.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that go away: that is no error of the server."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request per connection, in JSON."""

    server: Server
    protocol_version, server_version, sys_version = 'HTTP/1.1', 'xcit_mm', ''
    timeout = 60  # for sending the answer, and for what the timer misses

    def setup(self) -> None:
        super().setup()
        # For all of the request: a timeout of each read would allow one byte every few seconds.
        self.is_late, self.is_unread = False, True
        self.timer = threading.Timer(self.server.read_seconds, self.stop_reading)
        self.timer.daemon = True
        self.timer.start()

    def stop_reading(self) -> None:
        """End the request where it is."""
        self.is_late = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RD)

    def finish(self) -> None:
        super().finish()
        if self.is_unread:
            # Closing now would reset the connection, and the client might miss the answer.
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_WR)
                while self.connection.recv(1 << 16):
                    pass
        self.timer.cancel()

    def __getattr__(self, name: str) -> Any:
        # The base class calls do_GET, do_POST, do_PUT ...; unknown methods get an answer, too.
        if name.startswith('do_'):
            return self.answer
        raise AttributeError(name)

    def answer(self) -> None:
        """Send what was asked for, or why that is impossible."""
        self.close_connection = True
        try:
            status, content = HTTPStatus.OK, self.respond()
        except Refused as error:
            status, content = error.status, {'error': str(error)}
        except MemoryError:
            status = HTTPStatus.REQUEST_ENTITY_TOO_LARGE
            content = {'error': 'there is not enough memory for an image of this size'}
        self.send_json(status, content)

    def send_json(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        """Send an answer.

        Args:
            status (HTTPStatus): Whether it went well.
            content (dict): What to send.
        """
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header('Content-Type', 'application/json')
        self.send_header('Content-Length', str(len(body)))
        self.send_header('Connection', 'close')
        if status == HTTPStatus.METHOD_NOT_ALLOWED and self.path in ROUTES:
            self.send_header('Allow', ROUTES[self.path])
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            self.send_header('Retry-After', str(round(self.server.wait_seconds)))
        self.end_headers()
        if self.command != 'HEAD':
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what the base class refuses, such as a broken header."""
        self.close_connection = True
        self.send_json(HTTPStatus(code), {'error': message or HTTPStatus(code).phrase})

    def respond(self) -> dict[str, Any]:
        """Return the answer to a request; raise :class:`Refused` for errors."""
        self.check_time()
        if self.path not in ROUTES:
            raise Refused(HTTPStatus.NOT_FOUND, f'there are only {" and ".join(ROUTES)}')
        if self.command != ROUTES[self.path]:
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, f'{self.path} takes {ROUTES[self.path]}')
        if self.path == '/health':
            self.is_unread = False
            return {'status': 'ok', 'model': self.server.model.path.name}
        image = self.read_image()
        if not self.server.turn.acquire(timeout=self.server.wait_seconds):
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, 'too many images are waiting; try later')
        try:
            return describe(self.server.model, image)
        except ImageError as error:
            raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from None
        finally:
            self.server.turn.release()

    def check_time(self) -> None:
        if self.is_late:
            raise Refused(HTTPStatus.REQUEST_TIMEOUT, 'the request came too slowly')

    def read_image(self) -> np.ndarray:
        """Return the image in the body, BGR, after all checks that need no decoding."""
        kind = self.headers.get_content_type()
        if kind not in FORMATS:
            known = ', '.join(FORMATS)
            raise Refused(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f'the Content-Type must be one of {known}'
            )
        body = self.read_body()
        try:
            # This reads only the header.
            with Image.open(io.BytesIO(body), formats=[FORMATS[kind]]) as header:
                width, height = header.size
        except Image.DecompressionBombError as error:
            raise Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, str(error)) from None
        except Exception:  # a damaged file can raise anything
            raise Refused(HTTPStatus.BAD_REQUEST, f'the body is not {kind}') from None
        if width * height > self.server.max_pixels:
            raise Refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f'{width}x{height} pixels are more than {self.server.max_pixels}',
            )
        image = decode(np.frombuffer(body, np.uint8), self.server.model.bit_depth)
        if image is None:
            raise Refused(HTTPStatus.BAD_REQUEST, 'the image is damaged')
        return image

    def read_body(self) -> bytes:
        length = self.headers.get('Content-Length', '')
        if not (length.isascii() and length.isdecimal()):
            raise Refused(HTTPStatus.LENGTH_REQUIRED, 'the request must state a Content-Length')
        if int(length[:20]) > self.server.max_bytes:
            raise Refused(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f'{length[:20]} bytes are more than {self.server.max_bytes}',
            )
        body = self.rfile.read(int(length))
        self.timer.cancel()
        self.is_unread = False
        self.check_time()
        if len(body) < int(length):
            raise Refused(HTTPStatus.BAD_REQUEST, 'the body is shorter than stated')
        return body

    def log_message(self, format: str, *args: Any) -> None:
        """Print a line per request, without what a client could put into a terminal."""
        line = format % args
        print(''.join(c if c.isprintable() else '?' for c in line), file=sys.stderr)


def describe(model: Model, image: np.ndarray) -> dict[str, Any]:
    """Return what a model finds, in plain values; masks are run-length encoded as in COCO.

    Args:
        model (Model): The model.
        image (np.ndarray): BGR.
    """
    found = model(image)
    size = {'width': image.shape[1], 'height': image.shape[0]}
    if isinstance(found, Detections):
        objects = []
        for i, name in enumerate(found.names):
            entry = {'class': name, 'score': float(found.scores[i]), 'box': found.boxes[i].tolist()}
            if found.masks is not None:
                entry['mask'] = rle.encode(found.masks[i])
            objects.append(entry)
        return {**size, 'objects': objects}
    present = np.flatnonzero(np.bincount(found.labels.ravel()))
    regions = [
        {'class': model.classes[label], 'mask': rle.encode(found.labels == label)}
        for label in present
    ]
    return {**size, 'regions': regions}


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until Ctrl-C.

    Args:
        argv (Sequence[str], optional): The arguments. Defaults to None, those of this process.
    """
    parser = argparse.ArgumentParser(description='Serve an exported model over HTTP.')
    parser.add_argument('model', help='a file that "xcit-mm export" wrote')
    parser.add_argument('--host', default='127.0.0.1', help='default: %(default)s, this machine')
    parser.add_argument('--port', type=int, default=8000, help='default: %(default)s')
    args = parser.parse_args(argv)
    try:
        model = xcit_mm_runtime.load(args.model)
    except ModelError as error:
        print(f'error: {error}', file=sys.stderr)
        return 2
    with Server((args.host, args.port), model) as server:
        print(f'serving {args.model} on http://{args.host}:{server.server_port}', flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0


if __name__ == '__main__':
    sys.exit(main())
