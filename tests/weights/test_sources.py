"""Downloads against a real server on this machine, with cut connections and wrong files."""

import hashlib
import http.server
import json
import multiprocessing
import threading
import zipfile
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
from mmengine.runner import CheckpointLoader

from xcit_mm.weights import CheckpointError, download, read_weights
from xcit_mm.weights.sources import (
    DownloadError,
    UnknownWeightsError,
    cache_folder,
    cached_path,
    published,
    resolve_short_name,
)

pytestmark = pytest.mark.usefixtures('strict_reader')


class Server(http.server.BaseHTTPRequestHandler):
    files: dict = {}
    requests: list = []
    cut_after = None
    ranges = True

    def do_GET(self):
        self.requests.append(self.headers.get('Range'))
        content = self.files.get(self.path.lstrip('/'))
        if content is None:
            return self.send_error(404)
        start = 0
        if self.ranges and self.headers.get('Range'):
            start = int(self.headers['Range'].removeprefix('bytes=').rstrip('-'))
            if start >= len(content):
                return self.send_error(416)
        self.send_response(206 if start else 200)
        self.send_header('Content-Length', str(len(content) - start))
        self.end_headers()
        body = content[start:]
        self.wfile.write(body if self.cut_after is None else body[: self.cut_after])
        return None

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch, tmp_path):
    monkeypatch.setenv('TORCH_HOME', str(tmp_path / 'torch'))
    handler = type('Handler', (Server,), dict(files={}, requests=[], cut_after=None, ranges=True))
    httpd = http.server.ThreadingHTTPServer(('127.0.0.1', 0), handler)
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    handler.url = f'http://127.0.0.1:{httpd.server_port}'
    yield handler
    httpd.shutdown()
    httpd.server_close()


@pytest.fixture(scope='module')
def content(tmp_path_factory):
    path = tmp_path_factory.mktemp('made') / 'w.pth'
    torch.save({'x': torch.arange(50_000.0)}, path)
    return path.read_bytes()


def test_a_file_is_downloaded_once_and_read(server, content):
    server.files['w.pth'] = content
    for _ in range(2):
        loaded = CheckpointLoader.load_checkpoint(f'{server.url}/w.pth', 'cpu')
        assert torch.equal(loaded['x'], torch.arange(50_000.0))
    assert len(server.requests) == 1
    assert cached_path(f'{server.url}/w.pth').is_file()


@pytest.mark.parametrize('ranges', [True, False])
def test_an_interrupted_download_leaves_no_file_and_the_next_attempt_completes_it(
    server, content, ranges
):
    server.files['w.pth'] = content
    server.ranges, server.cut_after = ranges, 1000
    with pytest.raises(DownloadError, match=r'w\.pth'):
        download(f'{server.url}/w.pth')
    assert not cached_path(f'{server.url}/w.pth').exists()
    server.cut_after = None
    assert download(f'{server.url}/w.pth').read_bytes() == content
    assert server.requests == [None, 'bytes=1000-']


def test_a_part_that_is_too_long_is_started_over(server, content):
    server.files['w.pth'] = content
    part = cached_path(f'{server.url}/w.pth.part')
    part.parent.mkdir(parents=True)
    part.write_bytes(b'x' * (len(content) + 10))
    assert download(f'{server.url}/w.pth').read_bytes() == content


# As mmdet and mmseg name their files: a date is no hash.
@pytest.mark.parametrize('end', ['-c78dce93_20200708', '_20200708', '-20200708', '-HASH'])
def test_a_file_whose_hash_is_in_its_name_or_that_has_none_is_taken(end, server, content):
    name = f'w{end}.pth'.replace('HASH', hashlib.sha256(content).hexdigest()[:8])
    server.files[name] = content
    assert download(f'{server.url}/{name}').read_bytes() == content


@pytest.mark.parametrize('is_cached', [False, True])
def test_a_wrong_hash_is_refused_and_deleted(is_cached, server, content):
    server.files['w-00000000.pth'] = content
    url = f'{server.url}/w-00000000.pth'
    if is_cached:
        cached_path(url).parent.mkdir(parents=True)
        cached_path(url).write_bytes(content)
    with pytest.raises(DownloadError, match=r'00000000\. It was deleted'):
        CheckpointLoader.load_checkpoint(url, 'cpu')
    assert [p.name for p in cache_folder().rglob('w-00*') if p.suffix != '.lock'] == []
    assert len(server.requests) == 1 - is_cached


def test_files_with_the_same_name_from_two_places_are_kept_apart(server, tmp_path):
    path = tmp_path / 'made.pth'
    for place in ('a/w.pth', 'b/w.pth', 'w.pth?of=a', 'w.pth?of=b'):
        torch.save({'place': place}, path)
        server.files[place] = path.read_bytes()
    for place in server.files:
        loaded = CheckpointLoader.load_checkpoint(f'{server.url}/{place}', 'cpu')
        assert loaded == {'place': place}


@pytest.mark.parametrize('address', ['/', '', '/../../w.pth', '/a/..', '/./w.pth', '/folder/'])
def test_an_address_cannot_name_a_path_outside_the_cache(server, address):
    with pytest.raises(UnknownWeightsError, match='names no file'):
        download(server.url + address)
    assert not cache_folder().exists()


def test_archives_are_not_unpacked(server, content, tmp_path, monkeypatch):
    """mmengine itself would unpack an archive of one file."""
    with zipfile.ZipFile(tmp_path / 'w.zip', 'w') as archive:
        archive.writestr('unpacked.pth', content)
    server.files['w.zip'] = (tmp_path / 'w.zip').read_bytes()
    monkeypatch.setenv('MMENGINE_HOME', str(tmp_path))
    (tmp_path / 'open_mmlab.json').write_text(json.dumps({'evil': f'{server.url}/w.zip'}))
    with pytest.raises(CheckpointError, match=r'torch\.save did not write it'):
        CheckpointLoader.load_checkpoint('openmmlab://evil', 'cpu')
    assert list(tmp_path.rglob('unpacked.pth')) == []


def test_a_missing_file_says_what_to_do(server):
    with pytest.raises(DownloadError, match='Download it by other means'):
        download(f'{server.url}/none.pth')


def read_at_once(*sources):
    """The hashes of checkpoints that eight processes read at the same time."""
    context = multiprocessing.get_context('forkserver')
    context.set_forkserver_preload(['xcit_mm'])
    arguments = (context.Barrier(8), torch.hub.get_dir())
    with ProcessPoolExecutor(8, context, join, arguments) as pool:
        return [each for reader in pool.map(read, [sources] * 8) for each in reader]


def join(barrier, cache):
    read.barrier = barrier
    torch.hub.set_dir(cache)


def read(sources):
    read.barrier.wait(timeout=300)
    tensors = (read_weights(source)['state_dict'] for source in sources)
    return [hashlib.sha256(b''.join(t.numpy().tobytes() for t in each.values())).hexdigest()
            for each in tensors]  # fmt: skip


def test_eight_processes_at_once_download_it_once_and_read_the_same(server, tmp_path):
    path = tmp_path / 'w.pth'
    torch.save({'state_dict': {'x': torch.randn(1_000_000)}}, path)
    server.files['w.pth'] = path.read_bytes()
    hashes = read_at_once(str(path), f'{server.url}/w.pth')
    assert len(hashes) == 16 and len(set(hashes)) == 1
    assert len(server.requests) == 1
    torch.save({'state_dict': {'x': torch.randn(1_000_000)}}, path)
    assert set(read_at_once(str(path))).isdisjoint(hashes)


def test_timm_weights_come_through_timm(tmp_path, monkeypatch):
    """timm itself reads them, from a local folder in the layout of its hub's cache."""
    timm = pytest.importorskip('timm')
    from safetensors.torch import save_file

    from xcit_mm.models import XCiTClassifier

    name = 'xcit_nano_12_p16_224.fb_in1k'
    model = timm.create_model(name.partition('.')[0])
    repo = tmp_path / f'models--timm--{name}'
    (repo / 'refs').mkdir(parents=True)
    (repo / 'refs' / 'main').write_text('abc')
    snapshot = repo / 'snapshots' / 'abc'
    snapshot.mkdir(parents=True)
    save_file(model.state_dict(), snapshot / 'model.safetensors')
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_CACHE', str(tmp_path))
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', True)
    monkeypatch.setattr('huggingface_hub.file_download.HF_HUB_CACHE', str(tmp_path), raising=False)
    try:
        state = CheckpointLoader.load_checkpoint(f'timm://{name}', 'cpu')
    except DownloadError as error:
        pytest.fail(f'timm did not find its cached file: {error}')
    ours = XCiTClassifier('n12', 16)
    ours.load_state_dict(state)
    assert torch.equal(ours.head.weight, model.head.weight)


def test_all_70_published_files_have_a_short_name():
    table = published()
    assert len(table) == len(set(table.values())) == 70
    ends = {
        's12/8/384_dist': '/xcit_small_12_p8_384_dist.pth',
        'coco/s12/8': '/coco/maskrcnn_xcit_small_12_p8.pth',
        'dino/m24/16': '/xcit_medium_24_cp16_dino.pth',
        'ade20k/upernet/t12/8': 'upernet_xcit_tiny_12_p8.pth',
    }
    for name, end in ends.items():
        assert resolve_short_name(f'xcit://{name}').endswith(end)
    sizes = {name.removesuffix('/224') for name in table if name.endswith('/224')}
    assert len(sizes) == 14
    for size in sizes:  # a size alone means the paper's initialization for dense prediction
        assert resolve_short_name(f'xcit://{size}') == table[f'{size}/384_dist']


@pytest.mark.parametrize(
    'name', ['s12', 's12/8/', 's12/32', 'x99/8', 'dino/t12/8', '', '/384_dist', 's12/8/512']
)
def test_an_unknown_name_is_refused_with_those_that_exist(name):
    message = 'no published weights named .* choose from .*xcit://s12/8/224_dist'
    with pytest.raises(UnknownWeightsError, match='no published weights'):
        CheckpointLoader.load_checkpoint(f'xcit://{name}', 'cpu')
    if name.startswith('s12'):
        with pytest.raises(UnknownWeightsError, match=message):
            resolve_short_name(name)


def test_an_unknown_name_of_timm_is_refused_with_those_that_exist():
    with pytest.raises(UnknownWeightsError, match='its XCiT models are xcit_'):
        CheckpointLoader.load_checkpoint('timm://xcit_gigantic', 'cpu')
