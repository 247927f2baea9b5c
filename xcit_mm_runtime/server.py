"""Serves an exported model over HTTP, with FastAPI; ``xcit-mm serve`` starts it.

It needs ``[serve]``, and neither PyTorch nor OpenMMLab. :func:`deployment` is the same application
for Ray Serve.
"""

import asyncio
import functools
import io
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from fastapi import FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from PIL import Image
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client import generate_latest as metrics_text
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import ClientDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol

from . import rle
from .errors import ImageError
from .inputs import decode
from .model import Model, load
from .results import Detections, Segmentation

FORMATS = {
    'image/jpeg': 'JPEG',
    'image/png': 'PNG',
    'image/webp': 'WEBP',
    'image/tiff': 'TIFF',
    'image/bmp': 'BMP',
}
# The status in metrics of clients that went away, as nginx has it.
CLIENT_GONE = 499
# What a form adds to the file in it.
FORM_BYTES = 10_000
PAGE = Path(__file__).with_name('page.html')
BINARY = {'schema': {'type': 'string', 'format': 'binary'}}
FORM = {'type': 'object', 'properties': {'file': BINARY['schema']}, 'required': ['file']}
BODY = {
    'required': True,
    'content': {**dict.fromkeys(FORMATS, BINARY), 'multipart/form-data': {'schema': FORM}},
}


@dataclass(frozen=True)
class Limits:
    """What a server takes on.

    Args:
        workers (int): How many images are processed at a time. Defaults to 2: while one is decoded
            or written as JSON, the other uses the processors.
        queue (int): How many requests are read, wait or run at a time; others get status 503.
            Defaults to 64.
        max_bytes (int): Size of the largest file. Defaults to 20 MB.
        max_pixels (int): Size of the largest image. Defaults to 40 megapixels.
        read_seconds (float): How long a client may take to send a request. Defaults to 20.
        wait_seconds (float): How long a request waits for those before it. Defaults to 30.
    """

    workers: int = 2
    queue: int = 64
    max_bytes: int = 20_000_000
    max_pixels: int = 40_000_000
    read_seconds: float = 20
    wait_seconds: float = 30


class Engine:
    """Runs a model on images, a bounded number at a time.

    Args:
        model (Model): The model.
        limits (Limits): What it takes on.
    """

    def __init__(self, model: Model, limits: Limits) -> None:
        self.model, self.limits = model, limits
        self.pool = ThreadPoolExecutor(limits.workers, 'predict')
        self.turn = asyncio.Semaphore(limits.workers)
        self.admitted = 0
        self.registry = CollectorRegistry()
        self.answers = Counter(
            'xcit_mm_requests', 'Answers of /predict', ['status'], registry=self.registry
        )
        seconds = functools.partial(Histogram, registry=self.registry)
        self.waiting = seconds('xcit_mm_wait_seconds', 'Time that images waited for others')
        self.predicting = seconds('xcit_mm_predict_seconds', 'Time from a file to its answer')
        queue = Gauge(
            'xcit_mm_queue', 'Requests that are read, wait or run', registry=self.registry
        )
        queue.set_function(lambda: self.admitted)

    @property
    def is_full(self) -> bool:
        """Return whether another request would get status 503."""
        return self.admitted >= self.limits.queue

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Count a request; raise status 503 if there are too many."""
        if self.is_full:
            raise self.busy()
        self.admitted += 1
        try:
            yield
        finally:
            self.admitted -= 1

    def busy(self) -> HTTPException:
        """Return the error of a server that has too much to do."""
        after = {'Retry-After': str(round(self.limits.wait_seconds))}
        return HTTPException(503, 'too many images are waiting; try later', after)

    async def run(self, request: Request, work: Callable[[], bytes]) -> bytes:
        """Return the result of what a thread does, when it is the turn of a request."""
        arrived = time.monotonic()
        try:
            await asyncio.wait_for(self.turn.acquire(), self.limits.wait_seconds)
        except asyncio.TimeoutError:
            raise self.busy() from None
        try:
            if await request.is_disconnected():  # nobody waits for the answer
                raise HTTPException(CLIENT_GONE)
            self.waiting.observe(time.monotonic() - arrived)
            with self.predicting.time():
                return await asyncio.get_running_loop().run_in_executor(self.pool, work)
        except ImageError as error:
            raise HTTPException(422, str(error)) from None
        except MemoryError:
            raise HTTPException(413, 'there is not enough memory for this image') from None
        finally:
            self.turn.release()


def create_app(model: Model, limits: Limits = Limits()) -> FastAPI:  # noqa: B008, it is frozen
    """Return the application, for any ASGI server.

    Args:
        model (Model): A detector or a segmentor.
        limits (Limits): What it takes on. Defaults to those of :class:`Limits`.
    """
    model.check_predicts()
    engine = Engine(model, limits)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        engine.pool.shutdown()

    app = FastAPI(title=f'XCiT-MM: {model.path.name}', lifespan=lifespan)
    app.state.engine = engine
    app.add_exception_handler(StarletteHTTPException, _answer_error)
    app.add_exception_handler(RequestValidationError, _answer_error)
    app.add_exception_handler(Exception, _answer_error)

    @app.post(
        '/predict',
        openapi_extra={'requestBody': BODY},
        responses={200: {'content': {'application/json': {}, 'image/png': BINARY}}},
    )
    async def predict(
        request: Request, score_thr: float = Query(0.3, ge=0, le=1, description='for pictures')
    ) -> Response:
        """Predict for one image: JSON or, if the Accept header says image/png, a picture."""
        wants_picture = 'image/png' in request.headers.get('accept', '')
        try:
            with engine.admit():
                kind, body = await read_file(request, limits)
                drawn_from = score_thr if wants_picture else None
                work = functools.partial(answer, model, kind, body, limits.max_pixels, drawn_from)
                content = await engine.run(request, work)
        except Exception as error:
            engine.answers.labels(_status(error)).inc()
            raise
        engine.answers.labels(200).inc()
        return Response(content, media_type='image/png' if wants_picture else 'application/json')

    @app.get('/health')
    async def health() -> dict[str, str]:
        """Say that the process lives."""
        return {'status': 'ok', 'model': model.path.name}

    @app.get('/ready')
    async def ready() -> dict[str, str]:
        """Say whether the queue has room; status 503 if not."""
        if engine.is_full:
            raise engine.busy()
        return {'status': 'ready'}

    @app.get('/metrics')
    async def metrics() -> Response:
        """Return metrics for Prometheus."""
        return Response(metrics_text(engine.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get('/', include_in_schema=False)
    async def page() -> HTMLResponse:
        """Return a page that shows predictions for dropped images."""
        return HTMLResponse(PAGE.read_text(encoding='utf-8'))

    return app


async def read_file(request: Request, limits: Limits) -> tuple[str | None, bytes]:
    """Return the type of an uploaded image, None if unknown, and its content.

    Args:
        request (Request): Has the file as its body, or in a form.
        limits (Limits): Size and time of the upload.
    """
    kind = request.headers.get('content-type', '').partition(';')[0].strip().lower()
    is_form = kind == 'multipart/form-data'
    if not is_form:
        check_type(kind)
    length = request.headers.get('content-length', '')
    if not length.isdecimal():
        raise HTTPException(411, 'the request must state a Content-Length')
    if int(length) > limits.max_bytes + (FORM_BYTES if is_form else 0):
        raise HTTPException(413, f'{length} bytes are more than {limits.max_bytes}')
    try:
        body = await asyncio.wait_for(request.body(), limits.read_seconds)
    except asyncio.TimeoutError:
        raise HTTPException(408, 'the request came too slowly', {'Connection': 'close'}) from None
    except ClientDisconnect:
        raise HTTPException(400, 'the body is shorter than stated') from None
    if not is_form:
        return kind, body
    async with request.form(max_files=1, max_fields=10) as form:
        files = [value for value in form.values() if isinstance(value, UploadFile)]
        if not files:
            raise HTTPException(400, 'the form has no file')
        kind = (files[0].content_type or '').lower()
        if kind in ('', 'application/octet-stream'):  # curl knows few endings
            return None, await files[0].read()
        check_type(kind)
        return kind, await files[0].read()


def check_type(kind: str) -> None:
    """Raise status 415 for what is no image."""
    if kind not in FORMATS:
        raise HTTPException(415, f'the Content-Type must be one of {", ".join(FORMATS)}')


def read_image(model: Model, kind: str | None, body: bytes, max_pixels: int) -> np.ndarray:
    """Return an uploaded image, BGR, after all checks that need no decoding.

    Args:
        model (Model): What it is for.
        kind (str, optional): Its type; None for any of :data:`FORMATS`.
        body (bytes): Its content.
        max_pixels (int): Size of the largest image.
    """
    try:
        # This reads only the header.
        known = [FORMATS[kind]] if kind else list(FORMATS.values())
        with Image.open(io.BytesIO(body), formats=known) as header:
            width, height = header.size
    except Image.DecompressionBombError as error:
        raise HTTPException(413, str(error)) from None
    except Exception:  # a damaged file can raise anything
        raise HTTPException(400, f'the body is not {kind or "an image"}') from None
    if width * height > max_pixels:
        raise HTTPException(413, f'{width}x{height} pixels are more than {max_pixels}')
    image = decode(np.frombuffer(body, np.uint8), model.bit_depth)
    if image is None:
        raise HTTPException(400, 'the image is damaged')
    return image


def answer(
    model: Model, kind: str | None, body: bytes, max_pixels: int, score_thr: float | None
) -> bytes:
    """Return what a model finds in an uploaded image, as JSON or drawn on it.

    Args:
        model (Model): The model.
        kind (str, optional): The type of the file, if known.
        body (bytes): Its content.
        max_pixels (int): Size of the largest image.
        score_thr (float, optional): For a PNG, on which only boxes that score above this are drawn;
            None for JSON.
    """
    image = read_image(model, kind, body, max_pixels)
    found = model(image)
    if score_thr is None:
        size = {'width': image.shape[1], 'height': image.shape[0]}
        return json.dumps({**size, **describe(found)}).encode()
    drawn = found.draw(image, score_thr) if isinstance(found, Detections) else found.draw(image)
    return cv2.imencode('.png', drawn)[1].tobytes()


def describe(found: Detections | Segmentation) -> dict[str, Any]:
    """Return predictions in plain values; masks are run-length encoded as in COCO.

    Args:
        found (Detections or Segmentation): The predictions.
    """
    if isinstance(found, Detections):
        objects = []
        scores = np.ones(len(found.boxes)) if found.scores is None else found.scores
        for i, name in enumerate(found.names):
            entry = {'class': name, 'score': float(scores[i]), 'box': found.boxes[i].tolist()}
            if found.masks is not None:
                entry['mask'] = rle.encode(found.masks[i])
            objects.append(entry)
        return {'objects': objects}
    present = np.flatnonzero(np.bincount(found.labels.ravel()))
    regions = [
        {'class': found.classes[label], 'mask': rle.encode(found.labels == label)}
        for label in present.tolist()
    ]
    return {'regions': regions}


def _status(error: Exception) -> int:
    if isinstance(error, RequestValidationError):
        return 422
    return error.status_code if isinstance(error, StarletteHTTPException) else 500


async def _answer_error(request: Request, error: Exception) -> JSONResponse:
    """Answer an error in one sentence."""
    sentence, headers = 'the server failed', None
    if isinstance(error, StarletteHTTPException):
        sentence, headers = str(error.detail), error.headers
    elif isinstance(error, RequestValidationError):
        first = error.errors()[0]
        sentence = f'{first["loc"][-1]}: {first["msg"]}'
    return JSONResponse({'error': sentence}, _status(error), headers)


class TimedProtocol(H11Protocol):
    """Ends connections that have no request and send little, which uvicorn keeps open forever.

    These are headers that never end, and bodies of requests that were answered without them.
    """

    seconds = Limits.read_seconds
    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Start the clock, or stop it while there is a request."""
        if self.cycle is None or self.cycle.response_complete:
            self.timer = self.timer or self.loop.call_later(self.seconds, self._refuse)
        elif self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _refuse(self) -> None:
        if not self.transport.is_closing():
            body = b'{"error": "the request came too slowly"}'
            head = (
                'HTTP/1.1 408 Request Timeout\r\nContent-Type: application/json\r\n'
                f'Content-Length: {len(body)}\r\nConnection: close\r\n\r\n'
            )
            self.transport.write(head.encode() + body)
            self.transport.close()


def server_options(limits: Limits) -> dict[str, Any]:
    """Return the settings of uvicorn that belong to an application with these limits."""
    protocol = type('Protocol', (TimedProtocol,), {'seconds': limits.read_seconds})
    # Those that are refused need connections, too.
    return {'http': protocol, 'ws': 'none', 'limit_concurrency': 4 * limits.queue}


def deployment(args: dict[str, str]) -> Any:
    """Return the application for Ray Serve: ``serve run xcit_mm_runtime.server:deployment``.

    Args:
        args (dict): ``model``, the file, which every node must have; optionally ``replicas`` (1),
            ``threads`` of each (1), and any of :class:`Limits`.
    """
    from ray import serve

    given = dict(args)
    path, replicas = given.pop('model'), int(given.pop('replicas', 1))
    threads = int(given.pop('threads', 1))
    kinds = {name: type(getattr(Limits, name)) for name in Limits.__dataclass_fields__}
    unknown = given.keys() - kinds.keys()
    if unknown:
        raise ValueError(
            f'{sorted(unknown)} must be of model, replicas, threads, {", ".join(kinds)}'
        )
    limits = Limits(**{name: kinds[name](value) for name, value in given.items()})
    replica = serve.deployment(
        serve.ingress(lambda: create_app(load(path, threads), limits))(),
        name='xcit_mm',
        num_replicas=replicas,
        # The application says itself when it has too much to do.
        max_ongoing_requests=4 * limits.queue,
        ray_actor_options={'num_cpus': threads},
    )
    return replica.bind()
