"""The HTTP server with a real client on loopback, and clients that mean harm."""

import contextlib
import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib
from typing import Any, NamedTuple

import cv2
import httpx
import numpy as np
import pytest
import uvicorn
import yaml
from pycocotools import mask as coco

import xcit_mm_runtime
from xcit_mm_cli import parse_args
from xcit_mm_runtime.server import Limits, create_app, server_options

from ..tiny import ROOT, call
from .graphs import detector, metadata, random_detections, segmentor
from .test_model import CLASSES, weights
from .without import WITHOUT

PNG = {'Content-Type': 'image/png'}


@pytest.fixture(scope='module')
def picture():
    return np.random.default_rng(0).integers(0, 256, (48, 68, 3), np.uint8)


def encoded(image, ending='.png'):
    return cv2.imencode(ending, image)[1].tobytes()


class Address(NamedTuple):
    """Where a server listens, and its application."""

    host: str
    port: int
    app: Any

    def ask(self, method, route, body=None, headers=PNG):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=20)
        with contextlib.closing(connection):
            connection.request(method, route, body, headers)
            response = connection.getresponse()
            content = response.read()
            is_json = response.headers['Content-Type'] == 'application/json'
            return response.status, json.loads(content) if is_json else content, response.headers

    def connect(self):
        return socket.create_connection((self.host, self.port), timeout=10)


@contextlib.contextmanager
def serving(path, **changes):
    """A running server."""
    limits = Limits(**changes)
    app = create_app(xcit_mm_runtime.load(path), limits)
    with socket.create_server(('127.0.0.1', 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level='error', **server_options(limits)))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            yield Address(*listener.getsockname(), app)
        finally:
            server.should_exit = True
            thread.join()


def form(content, kind, name='file'):
    """The body and the headers of a form with a file."""
    request = httpx.Request('POST', 'http://x', files={name: ('a.png', content, kind)})
    return request.read(), dict(request.headers)


@pytest.fixture(scope='module')
def segments(tmp_path_factory):
    path = tmp_path_factory.mktemp('models') / 'seg.onnx'
    return segmentor(path, weights(3), metadata('segmentation', CLASSES, resize=None))


def test_a_detector_is_served(picture, tmp_path):
    given = random_detections(5, (96, 136))
    path = detector(tmp_path / 'det.onnx', given, metadata('detection', CLASSES))
    with serving(path) as server:
        status, answer, _ = server.ask('POST', '/predict', encoded(picture))
        # Resized, even one pixel has the size that the graph takes.
        for sides in ((1, 1), (7, 68), (48, 7)):
            too_small = server.ask('POST', '/predict', encoded(picture[: sides[0], : sides[1]]))
            reason = f'at least one patch in size, 8x8, not {sides[0]}x{sides[1]}'
            assert too_small[0] == 422 and reason in too_small[1]['error']
        assert server.ask('POST', '/predict', encoded(picture[:8, :8]))[0] == 200
    found = xcit_mm_runtime.load(path)(picture)
    assert status == 200 and (answer['width'], answer['height']) == (68, 48)
    for i, entry in enumerate(answer['objects']):
        assert entry['class'] == found.names[i] and entry['box'] == found.boxes[i].tolist()
        assert (coco.decode(entry['mask']) == found.masks[i]).all()


def test_a_segmentor_is_served(picture, segments):
    with serving(segments) as server:
        status, answer, _ = server.ask('POST', '/predict', encoded(picture))
        assert server.ask('GET', '/health')[:2] == (200, {'status': 'ok', 'model': 'seg.onnx'})
    labels = xcit_mm_runtime.load(segments)(picture).labels
    assert status == 200 and len(answer['regions']) == len(np.unique(labels)) > 1
    for region in answer['regions']:
        label = CLASSES.index(region['class'])
        assert (coco.decode(region['mask']) == (labels == label)).all()


def test_12_bit_images_are_served_as_those_of_8_bits(picture, tmp_path):
    info = metadata('segmentation', CLASSES, resize=None, bit_depth=12)
    with serving(segmentor(tmp_path / 'model.onnx', weights(3), info)) as server:
        answers = [
            server.ask('POST', '/predict', encoded(image))[:2]
            for image in (picture, picture.astype(np.uint16) << 4)
        ]
    assert answers[0][0] == 200 and answers[0] == answers[1]


def chunk(kind, data):
    return struct.pack('>I', len(data)) + kind + data + struct.pack('>I', zlib.crc32(kind + data))


def bomb(side):
    """A PNG of few bytes that unpacks to gigabytes."""
    header = struct.pack('>IIBBBBB', side, side, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(1 << 20))
    start = b'\x89PNG\r\n\x1a\n' + chunk(b'IHDR', header)
    return start + chunk(b'IDAT', data) + chunk(b'IEND', b'')


def test_bad_requests_get_the_right_status_and_a_sentence(picture, segments):
    png, jpeg = encoded(picture), encoded(picture, '.jpg')
    cases = [
        (404, 'GET', '/nothing', None, {}),
        (404, 'POST', '/predict/../x', png, PNG),
        (405, 'GET', '/predict', None, {}),
        (405, 'POST', '/health', png, PNG),
        (405, 'BREW', '/predict', png, PNG),
        (415, 'POST', '/predict', b'{}', {'Content-Type': 'application/json'}),
        (415, 'POST', '/predict', png, {}),
        (415, 'POST', '/predict', b'<svg/>', {'Content-Type': 'image/svg+xml'}),
        (400, 'POST', '/predict', b'', PNG),
        (400, 'POST', '/predict', b'no image', PNG),
        (400, 'POST', '/predict', jpeg, PNG),
        (400, 'POST', '/predict', png[: len(png) // 4], PNG),
        (411, 'POST', '/predict', iter([png]), PNG),
        (413, 'POST', '/predict', None, {**PNG, 'Content-Length': '9' * 18}),
        (413, 'POST', '/predict', bytes(200_001), PNG),
        (413, 'POST', '/predict', bomb(60_000), PNG),
        (413, 'POST', '/predict', bomb(2**31 - 1), PNG),
        (422, 'POST', '/predict', encoded(picture[:1, :1]), PNG),
        (422, 'POST', '/predict?score_thr=2', png, PNG),
        (400, 'POST', '/predict', b'no form', {'Content-Type': 'multipart/form-data; boundary=x'}),
        (400, 'POST', '/predict', b'no form', {'Content-Type': 'multipart/form-data'}),
        (400, 'POST', '/predict', *form(jpeg, 'image/png')),
        (400, 'POST', '/predict', *form(b'no image', 'application/octet-stream')),
        (413, 'POST', '/predict', *form(bytes(300_000), 'image/png')),
        (415, 'POST', '/predict', *form(png, 'application/pdf')),
    ]
    with serving(segments, max_bytes=200_000) as server:
        for expected, method, route, body, headers in cases:
            status, answer, more = server.ask(method, route, body, headers)
            assert status == expected, (status, answer, method, route, str(headers)[:80])
            assert answer['error'] and '\n' not in answer['error']
            assert status != 405 or more['Allow'] in ('GET', 'POST')
        # The answer arrives even while the client is still sending.
        assert server.ask('POST', '/predict', bytes(30_000_000))[0] == 413
        # What is no HTTP is refused before the application sees it.
        bad_length = b'POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: %s\r\n\r\n'
        for start in (b'no "HTTP" here HTTP/1.1\r\n\r\n', bad_length % b'-5', bad_length % b'x'):
            with server.connect() as client:
                client.sendall(start)
                assert client.recv(100).startswith(b'HTTP/1.1 400')
        with server.connect() as client:  # cut off in the middle
            client.sendall(b'POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\n')
            client.sendall(b'Content-Length: 1000\r\n\r\nabc')
        assert server.ask('POST', '/predict', png)[0] == 200  # it lives


def test_a_jpeg_that_ends_early_does_no_harm(picture, segments):
    jpeg = encoded(cv2.resize(picture, (600, 400)), '.jpg')
    with serving(segments) as server:
        # OpenCV fills up what is missing of a JPEG; of half a header, nothing can be made.
        for end in (len(jpeg) // 2, 30):
            headers = {'Content-Type': 'image/jpeg'}
            assert server.ask('POST', '/predict', jpeg[:end], headers)[0] in (200, 400)


def test_slow_clients_are_cut_off_and_do_not_hold_up_others(picture, segments):
    start = b'POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\n'
    with serving(segments, read_seconds=1.0) as server:
        slow = [server.connect() for _ in range(4)]
        slow[0].sendall(start)  # the header never ends
        slow[1].sendall(start + b'Content-Length: 1000\r\n\r\nabc')
        refused = start.replace(b'image/png', b'text/css') + b'Content-Length: 1000\r\n\r\n'
        slow[2].sendall(refused + b'abc')  # and nothing comes from the last one
        began = time.monotonic()
        assert server.ask('POST', '/predict', encoded(picture))[0] == 200
        statuses = [connection.recv(100).split()[1] for connection in slow]
        assert statuses == [b'408', b'408', b'415', b'408']
        with pytest.raises(ConnectionError):  # after its answer, it is cut off, too
            for _ in range(50):
                slow[2].sendall(b'a')
                time.sleep(0.1)
        assert time.monotonic() - began < 8
        for connection in slow:
            connection.close()


@contextlib.contextmanager
def held_up(server, monkeypatch):
    """While this lasts, images are not processed; yields how many are processed at a time."""
    model, go_on, running, most = server.app.state.engine.model, threading.Event(), [], []
    call = model.run_batch

    def run(image):
        running.append(1)
        most.append(len(running))
        assert go_on.wait(20)
        try:
            return call(image)
        finally:
            running.pop()

    monkeypatch.setattr(model, 'run_batch', run)
    try:
        yield most
    finally:
        go_on.set()


def raw_request(png):
    """The header of a request."""
    head = 'POST /predict HTTP/1.1\r\nHost: x\r\nContent-Type: image/png\r\n'
    return f'{head}Content-Length: {len(png)}\r\n\r\n'.encode()


def wait_until(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_busy_servers_say_so_and_answer_what_they_have_accepted(picture, segments, monkeypatch):
    png, statuses = encoded(picture), []
    with serving(segments, queue=3, workers=1) as server:
        engine = server.app.state.engine
        ask = lambda: statuses.append(server.ask('POST', '/predict', png)[0])  # noqa: E731
        threads = [threading.Thread(target=ask) for _ in range(3)]
        assert server.ask('GET', '/ready')[0] == 200
        with held_up(server, monkeypatch) as most:
            for thread in threads:
                thread.start()
            wait_until(lambda: engine.admitted == 3)
            status, answer, headers = server.ask('POST', '/predict', png)
            assert status == 503 and 'try later' in answer['error'] and headers['Retry-After']
            assert server.ask('GET', '/ready')[0] == 503 and server.ask('GET', '/health')[0] == 200
        for thread in threads:
            thread.join()
        assert statuses == [200] * 3 and most == [1] * 3
        metrics = server.ask('GET', '/metrics')[1].decode()
    assert 'xcit_mm_requests_total{status="200"} 3.0' in metrics
    assert 'xcit_mm_requests_total{status="503"} 1.0' in metrics
    assert 'xcit_mm_queue 0.0' in metrics and 'xcit_mm_predict_seconds_count 3.0' in metrics


def test_an_image_does_not_wait_forever(picture, segments, monkeypatch):
    png = encoded(picture)
    with serving(segments, workers=1, wait_seconds=0.1) as server:
        first = threading.Thread(target=server.ask, args=('POST', '/predict', png))
        with held_up(server, monkeypatch) as most:
            first.start()
            wait_until(lambda: most)
            assert server.ask('POST', '/predict', png)[0] == 503
        first.join()
        assert server.ask('POST', '/predict', png)[0] == 200


def test_images_of_clients_that_went_away_are_not_processed(picture, segments, monkeypatch):
    png = encoded(picture)
    with serving(segments, workers=1) as server:
        engine = server.app.state.engine
        first = threading.Thread(target=server.ask, args=('POST', '/predict', png))
        with held_up(server, monkeypatch) as most:
            first.start()
            wait_until(lambda: most)
            for _ in range(3):
                with server.connect() as client:
                    client.sendall(raw_request(png) + png)
                wait_until(lambda: engine.admitted > 1)
        first.join()
        wait_until(lambda: engine.admitted == 0)
        metrics = server.ask('GET', '/metrics')[1].decode()
    assert len(most) == 1 and 'xcit_mm_requests_total{status="499"} 3.0' in metrics


def test_100_parallel_uploads_get_an_answer_each(picture, segments):
    png, statuses = encoded(picture), []
    with serving(segments, queue=20) as server:
        ask = lambda: statuses.append(server.ask('POST', '/predict', png)[0])  # noqa: E731
        threads = [threading.Thread(target=ask) for _ in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(statuses) == 100 and set(statuses) <= {200, 503} and 200 in statuses


def test_files_in_forms_and_all_formats(picture, segments):
    with serving(segments) as server:
        _, expected, _ = server.ask('POST', '/predict', encoded(picture))
        png = encoded(picture)
        for kind in ('image/png', 'application/octet-stream'):
            assert server.ask('POST', '/predict', *form(png, kind))[1] == expected
        assert server.ask('POST', '/predict', *form(png, 'image/png', 'image'))[1] == expected
        for ending, kind in (
            ('.tiff', 'tiff'),
            ('.bmp', 'bmp'),
            ('.webp', 'webp'),
            ('.jpg', 'jpeg'),
        ):
            content = encoded(picture, ending)
            answer = server.ask('POST', '/predict', content, {'Content-Type': f'image/{kind}'})
            again = server.ask('POST', '/predict', *form(content, 'application/octet-stream'))
            assert answer[0] == 200 and answer[1] == again[1]
            if kind in ('tiff', 'bmp'):
                assert answer[1] == expected


def test_pictures_the_page_and_the_description(picture, tmp_path):
    given = random_detections(5, (96, 136))
    path = detector(tmp_path / 'det.onnx', given, metadata('detection', CLASSES))
    with serving(path) as server:
        headers = {**PNG, 'Accept': 'image/png'}
        for threshold in (0.3, 0.9):
            route = f'/predict?score_thr={threshold}'
            status, content, more = server.ask('POST', route, encoded(picture), headers)
            assert status == 200 and more['Content-Type'] == 'image/png'
            drawn = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
            assert (drawn == xcit_mm_runtime.load(path)(picture).draw(picture, threshold)).all()
        assert b'Drop an image' in server.ask('GET', '/')[1]
        described = server.ask('GET', '/openapi.json')[1]['paths']
        assert {'/predict', '/health', '/ready', '/metrics'} == set(described)
        body = described['/predict']['post']['requestBody']['content']
        assert {'image/jpeg', 'image/tiff', 'multipart/form-data'} <= set(body)
        assert server.ask('GET', '/docs')[0] == 200


def test_a_model_file_that_is_replaced_changes_nothing(picture, tmp_path):
    info = metadata('segmentation', CLASSES, resize=None)
    path = segmentor(tmp_path / 'model.onnx', weights(3), info)
    with serving(path) as server:
        before = server.ask('POST', '/predict', encoded(picture))[1]
        segmentor(path, -weights(3), info)
        assert server.ask('POST', '/predict', encoded(picture))[1] == before
        path.write_bytes(b'no model')
        assert server.ask('POST', '/predict', encoded(picture))[1] == before


def start(*words):
    """The command, in a process that cannot import PyTorch; returns it and its port."""
    # The command itself is part of xcit_mm_cli, which needs nothing else.
    code = WITHOUT.replace("'xcit_mm_cli', ", '') + 'from xcit_mm_cli import main; sys.exit(main())'
    command = [sys.executable, '-c', code, 'serve', *map(str, words), '--port', '0']
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    return process, int(process.stdout.readline().rpartition(':')[2])


@pytest.mark.parametrize('end', [signal.SIGTERM, signal.SIGINT])
def test_the_command_needs_no_torch_and_ends_when_all_is_answered(end, picture, segments):
    process, port = start(segments, '--threads', '1')
    png = encoded(picture)
    with process, socket.create_connection(('127.0.0.1', port), timeout=20) as client:
        client.sendall(raw_request(png) + png[:100])
        Address('127.0.0.1', port, None).ask('GET', '/health')  # by now the server reads
        process.send_signal(end)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.5)
        client.sendall(png[100:])
        assert client.recv(100).startswith(b'HTTP/1.1 200')
        assert process.wait(20) in (0, -end)


def test_what_cannot_be_served_is_said(segments, tmp_path, capfd):
    assert call('serve', tmp_path / 'none.onnx') == 2
    assert 'There is no model' in capfd.readouterr().err
    with socket.create_server(('127.0.0.1', 0)) as taken:
        assert call('serve', segments, '--port', taken.getsockname()[1]) == 2
    assert 'Address already in use' in capfd.readouterr().err


def test_the_kubernetes_example_starts_the_command_and_asks_for_paths_that_exist(segments):
    _, deployment = yaml.safe_load_all((ROOT / 'examples/kubernetes_serve.yaml').read_text())
    (container,) = deployment['spec']['template']['spec']['containers']
    program, name, *words = container['command']
    assert program == 'xcit-mm' and parse_args(name, words).host == '0.0.0.0'
    probes = [container[f'{kind}Probe']['httpGet']['path'] for kind in ('startup', 'readiness')]
    with serving(segments) as server:
        assert [server.ask('GET', path)[0] for path in probes] == [200, 200]


@pytest.mark.long
def test_two_replicas_of_ray_serve_answer_as_the_server_does(picture, segments):
    """Takes port 8000."""
    png, expected = encoded(picture), None
    with serving(segments) as server:
        expected = server.ask('POST', '/predict', png)[1]
    words = [sys.executable, '-m', 'ray.serve.scripts', 'run', 'xcit_mm_runtime.server:deployment']
    words += [f'model={segments}', 'replicas=2', 'queue=5']
    # On a busy machine, Ray's proxy misses checks of 5 and 10 seconds, and is restarted.
    checks = ('RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S', 'RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S')
    patient = {**os.environ, **dict.fromkeys(checks, '120')}
    with subprocess.Popen(words, cwd=ROOT, env=patient) as process:
        ray = Address('127.0.0.1', 8000, None)

        def is_up():
            try:
                return ray.ask('GET', '/ready')[0] == 200
            except OSError:
                return process.poll() is not None

        try:
            wait_until(is_up, 240)
            assert all(ray.ask('POST', '/predict', png)[1] == expected for _ in range(6))
            assert ray.ask('POST', '/predict', *form(png, 'image/png'))[1] == expected
            assert ray.ask('POST', '/predict', b'no image')[0] == 400
            assert ray.ask('POST', '/predict', png, {})[0] == 415
            assert ray.ask('POST', '/predict', encoded(picture[:1, :1]))[0] == 422
        finally:
            process.send_signal(signal.SIGINT)
