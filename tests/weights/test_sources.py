"""Downloads against a real server on this machine, with cut connections and wrong files."""

import hashlib
import http.server
import json
import threading
import zipfile
from pathlib import Path

import pytest
import torch
from mmengine.runner import CheckpointLoader

from dev.soak import read_at_once
from xcit_mm.weights import CheckpointError, download
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


def checkpoint_bytes(tmp_path):
    path = tmp_path / 'made.pth'
    torch.save({'x': torch.arange(50_000.0)}, path)
    return path.read_bytes()


def test_a_file_is_downloaded_once_and_read(server, tmp_path):
    server.files['w.pth'] = checkpoint_bytes(tmp_path)
    for _ in range(2):
        loaded = CheckpointLoader.load_checkpoint(f'{server.url}/w.pth', 'cpu')
        assert torch.equal(loaded['x'], torch.arange(50_000.0))
    assert len(server.requests) == 1
    assert cached_path(f'{server.url}/w.pth').is_file()


@pytest.mark.parametrize('ranges', [True, False])
def test_an_interrupted_download_leaves_no_file_and_the_next_attempt_completes_it(
    server, tmp_path, ranges
):
    server.files['w.pth'] = content = checkpoint_bytes(tmp_path)
    server.ranges, server.cut_after = ranges, 1000
    with pytest.raises(DownloadError, match=r'w\.pth'):
        download(f'{server.url}/w.pth')
    assert not cached_path(f'{server.url}/w.pth').exists()
    server.cut_after = None
    assert download(f'{server.url}/w.pth').read_bytes() == content
    assert server.requests == [None, 'bytes=1000-']


def test_a_part_that_is_too_long_is_started_over(server, tmp_path):
    server.files['w.pth'] = content = checkpoint_bytes(tmp_path)
    part = cached_path(f'{server.url}/w.pth.part')
    part.parent.mkdir(parents=True)
    part.write_bytes(b'x' * (len(content) + 10))
    assert download(f'{server.url}/w.pth').read_bytes() == content


@pytest.mark.parametrize('end', ['-c78dce93_20200708', '_20200708', '-20200708'])
def test_a_date_in_a_name_is_no_hash(end, server, tmp_path):
    # As mmdet and mmseg name their files.
    name = f'mask_rcnn_r50_fpn_1x_coco{end}.pth'
    server.files[name] = content = checkpoint_bytes(tmp_path)
    assert download(f'{server.url}/{name}').read_bytes() == content


def test_a_wrong_hash_is_refused_and_deleted(server, tmp_path):
    content = checkpoint_bytes(tmp_path)
    right = f'w-{hashlib.sha256(content).hexdigest()[:8]}.pth'
    server.files |= {right: content, 'w-00000000.pth': content}
    assert download(f'{server.url}/{right}').is_file()
    with pytest.raises(DownloadError, match='00000000'):
        download(f'{server.url}/w-00000000.pth')
    assert [p.name for p in cache_folder().rglob('w-00*') if p.suffix != '.lock'] == []


def test_a_wrong_file_in_the_cache_is_refused_and_deleted(server, tmp_path):
    url = f'{server.url}/w-00000000.pth'
    cached_path(url).parent.mkdir(parents=True)
    cached_path(url).write_bytes(checkpoint_bytes(tmp_path))
    with pytest.raises(DownloadError, match='It was deleted'):
        CheckpointLoader.load_checkpoint(url, 'cpu')
    assert not cached_path(url).exists() and server.requests == []


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


@pytest.mark.parametrize('name', ['w.zip', 'w-00000000.pth'])
def test_model_zoo_addresses_are_read_strictly(server, tmp_path, monkeypatch, name):
    """mmengine itself would unpack an archive of one file and would not verify a hash."""
    with zipfile.ZipFile(tmp_path / 'w.zip', 'w') as archive:
        archive.writestr('unpacked.pth', checkpoint_bytes(tmp_path))
    server.files['w.zip'] = (tmp_path / 'w.zip').read_bytes()
    server.files['w-00000000.pth'] = checkpoint_bytes(tmp_path)
    monkeypatch.setenv('MMENGINE_HOME', str(tmp_path))
    (tmp_path / 'open_mmlab.json').write_text(json.dumps({'evil': f'{server.url}/{name}'}))
    with pytest.raises(CheckpointError, match='write it$' if name == 'w.zip' else '00000000'):
        CheckpointLoader.load_checkpoint('openmmlab://evil', 'cpu')
    assert list(tmp_path.rglob('unpacked.pth')) == []


def test_a_missing_file_says_what_to_do(server):
    with pytest.raises(DownloadError, match='Download it by other means'):
        download(f'{server.url}/none.pth')


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


def test_a_size_alone_means_the_papers_dense_initialization():
    sizes = {name.removesuffix('/224') for name in published() if name.endswith('/224')}
    assert len(sizes) == 14
    for size in sizes:
        assert resolve_short_name(f'xcit://{size}') == published()[f'{size}/384_dist']
    assert resolve_short_name('xcit://s12/8').endswith('/xcit_small_12_p8_384_dist.pth')


@pytest.mark.parametrize(
    'name', ['s12', 's12/8/', 's12/32', 'x99/8', 'dino/t12/8', '', '/384_dist']
)
def test_a_part_of_a_name_is_refused(name):
    with pytest.raises(UnknownWeightsError, match='no published weights'):
        resolve_short_name(f'xcit://{name}')


def test_unknown_names_are_explained():
    with pytest.raises(ValueError, match='its XCiT models are'):
        CheckpointLoader.load_checkpoint('timm://xcit_gigantic', 'cpu')
    with pytest.raises(ValueError, match='no published weights'):
        CheckpointLoader.load_checkpoint('xcit://x99/8/224', 'cpu')


@pytest.mark.parametrize('content', [b'', b'PK\x03\x04', b'\x80\x02', b'\0' * 64, b'not weights'])
def test_a_file_that_is_not_a_checkpoint_is_refused_by_name(tmp_path, content):
    path = Path(tmp_path) / 'bad.pth'
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r'bad\.pth'):
        CheckpointLoader.load_checkpoint(str(path), 'cpu')
    with pytest.raises(FileNotFoundError, match='no checkpoint'):
        CheckpointLoader.load_checkpoint(str(path) + 'x', 'cpu')
