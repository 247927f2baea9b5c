"""examples/serve.py with a real client on loopback, and clients that mean harm."""

import contextlib
import http.client
import json
import socket
import struct
import subprocess
import sys
import threading
import time
import zlib

import cv2
import numpy as np
import pytest
from pycocotools import mask as coco

import xcit_mm_runtime
from examples.serve import Server

from ..tiny import ROOT
from .graphs import detector, metadata, random_detections, segmentor
from .test_model import CLASSES, weights
from .without import WITHOUT

PNG = {'Content-Type': 'image/png'}


@pytest.fixture(scope='module')
def picture():
    return np.random.default_rng(0).integers(0, 256, (48, 68, 3), np.uint8)


def encoded(image, ending='.png'):
    return cv2.imencode(ending, image)[1].tobytes()


@contextlib.contextmanager
def serving(path, **limits):
    """A running server, and a function that sends it a request."""
    server = Server(('127.0.0.1', 0), xcit_mm_runtime.load(path), **limits)
    thread = threading.Thread(target=server.serve_forever, kwargs={'poll_interval': 0.02})
    thread.start()

    def ask(method, route, body=None, headers=PNG):
        connection = http.client.HTTPConnection(*server.server_address, timeout=20)
        with contextlib.closing(connection):
            connection.request(method, route, body, headers)
            response = connection.getresponse()
            return response.status, json.loads(response.read()), response.headers

    try:
        yield server, ask
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope='module')
def segments(tmp_path_factory):
    path = tmp_path_factory.mktemp('models') / 'seg.onnx'
    return segmentor(path, weights(3), metadata('segmentation', CLASSES, resize=None))


def test_a_detector_is_served(picture, tmp_path):
    given = random_detections(5, (96, 136))
    path = detector(tmp_path / 'det.onnx', given, metadata('detection', CLASSES))
    with serving(path) as (_, ask):
        status, answer, _ = ask('POST', '/predict', encoded(picture))
        # Resized, even one pixel has the size that the graph takes.
        for sides in ((1, 1), (7, 68), (48, 7)):
            too_small = ask('POST', '/predict', encoded(picture[: sides[0], : sides[1]]))
            reason = f'at least one patch in size, 8x8, not {sides[0]}x{sides[1]}'
            assert too_small[0] == 422 and reason in too_small[1]['error']
        assert ask('POST', '/predict', encoded(picture[:8, :8]))[0] == 200
    found = xcit_mm_runtime.load(path)(picture)
    assert status == 200 and (answer['width'], answer['height']) == (68, 48)
    for i, entry in enumerate(answer['objects']):
        assert entry['class'] == found.names[i] and entry['box'] == found.boxes[i].tolist()
        assert (coco.decode(entry['mask']) == found.masks[i]).all()


def test_a_segmentor_is_served(picture, segments):
    with serving(segments) as (_, ask):
        status, answer, _ = ask('POST', '/predict', encoded(picture))
        assert ask('GET', '/health')[:2] == (200, {'status': 'ok', 'model': 'seg.onnx'})
    labels = xcit_mm_runtime.load(segments)(picture).labels
    assert status == 200 and len(answer['regions']) == len(np.unique(labels)) > 1
    for region in answer['regions']:
        label = CLASSES.index(region['class'])
        assert (coco.decode(region['mask']) == (labels == label)).all()


def test_12_bit_images_are_served_as_those_of_8_bits(picture, tmp_path):
    info = metadata('segmentation', CLASSES, resize=None, bit_depth=12)
    with serving(segmentor(tmp_path / 'model.onnx', weights(3), info)) as (_, ask):
        answers = [
            ask('POST', '/predict', encoded(image))[:2]
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
        (404, 'GET', '/', None, {}),
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
        (411, 'POST', '/predict', None, {**PNG, 'Content-Length': '-5'}),
        (413, 'POST', '/predict', None, {**PNG, 'Content-Length': '9' * 1000}),
        (413, 'POST', '/predict', bytes(200_001), PNG),
        (413, 'POST', '/predict', bomb(60_000), PNG),
        (413, 'POST', '/predict', bomb(2**31 - 1), PNG),
        (422, 'POST', '/predict', encoded(picture[:1, :1]), PNG),
    ]
    with serving(segments, max_bytes=200_000) as (server, ask):
        for expected, method, route, body, headers in cases:
            status, answer, more = ask(method, route, body, headers)
            assert status == expected, (status, answer, method, route, str(headers)[:80])
            assert answer['error'] and '\n' not in answer['error']
            assert status != 405 or more['Allow'] in ('GET', 'POST')
        # The answer arrives even while the client is still sending.
        assert ask('POST', '/predict', bytes(30_000_000))[0] == 413
        with socket.create_connection(server.server_address, timeout=10) as client:
            client.sendall(b'no "HTTP" here HTTP/1.1\r\n\r\n')
            # Header and body may come in two packets; the end of the connection ends the answer.
            answer = b''.join(iter(lambda: client.recv(1000), b''))
            head, _, body = answer.partition(b'\r\n\r\n')
            assert b'400' in head and 'syntax' in json.loads(body)['error']
        assert ask('POST', '/predict', png)[0] == 200  # it lives


def test_a_jpeg_that_ends_early_does_no_harm(picture, segments):
    jpeg = encoded(cv2.resize(picture, (600, 400)), '.jpg')
    with serving(segments) as (_, ask):
        # OpenCV fills up what is missing of a JPEG; of half a header, nothing can be made.
        for end in (len(jpeg) // 2, 30):
            headers = {'Content-Type': 'image/jpeg'}
            assert ask('POST', '/predict', jpeg[:end], headers)[0] in (200, 400)


def test_slow_clients_are_cut_off_and_do_not_hold_up_others(picture, segments):
    start = b'POST /predict HTTP/1.1\r\nContent-Type: image/png\r\n'
    with serving(segments, read_seconds=1.0) as (server, ask):
        slow = [socket.create_connection(server.server_address, timeout=10) for _ in range(2)]
        slow[0].sendall(start)  # the header never ends
        slow[1].sendall(start + b'Content-Length: 1000\r\n\r\nabc')
        began = time.monotonic()
        assert ask('POST', '/predict', encoded(picture))[0] == 200
        assert [connection.recv(100).split()[1] for connection in slow] == [b'408'] * 2
        assert time.monotonic() - began < 8
        for connection in slow:
            connection.close()


def test_busy_servers_say_so(picture, segments):
    with serving(segments, wait_seconds=0.1, max_clients=2) as (server, ask):
        with server.turn:  # as if an image took long
            status, answer, headers = ask('POST', '/predict', encoded(picture))
            assert status == 503 and 'try later' in answer['error'] and 'Retry-After' in headers
            assert ask('GET', '/health')[0] == 200
        for _ in range(2):  # as if two clients were connected
            server.clients.acquire()
        with socket.create_connection(server.server_address, timeout=20) as third:
            assert b'503' in third.recv(100)
        server.clients.release(2)
        assert ask('POST', '/predict', encoded(picture))[0] == 200


def test_images_are_processed_one_at_a_time(picture, segments, monkeypatch):
    running, most = [], []
    with serving(segments) as (server, ask):
        call = server.model.run_batch

        def run(image):
            running.append(1)
            most.append(len(running))
            time.sleep(0.05)
            try:
                return call(image)
            finally:
                running.pop()

        monkeypatch.setattr(server.model, 'run_batch', run)
        threads = [
            threading.Thread(target=ask, args=('POST', '/predict', encoded(picture)))
            for _ in range(5)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert most == [1] * 5


def test_the_example_runs_as_a_process_without_torch(picture, segments):
    code = WITHOUT + 'import runpy; runpy.run_path("examples/serve.py", run_name="__main__")'
    words = [sys.executable, '-c', code, str(segments), '--port', '0']
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            port = int(process.stdout.readline().rpartition(':')[2])
            connection = http.client.HTTPConnection('127.0.0.1', port, timeout=20)
            with contextlib.closing(connection):
                connection.request('POST', '/predict', encoded(picture), PNG)
                assert connection.getresponse().status == 200
        finally:
            process.terminate()
