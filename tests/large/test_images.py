"""Images are read by windows, whatever the file; damaged ones are named."""

import functools

import cv2
import numpy as np
import pytest
import tifffile

from xcit_mm.errors import UserError
from xcit_mm.large import open_image
from xcit_mm.large.windows import Window
from xcit_mm_runtime.inputs import to_8_bit

WINDOWS = [Window(0, 70, 0, 90), Window(3, 50, 17, 90), Window(40, 41, 60, 61)]


@pytest.fixture
def pixels():
    return np.random.default_rng(0).integers(0, 256, (70, 90, 3), np.uint8)


def write_zarr(path, pixels):
    zarr = pytest.importorskip('zarr')
    zarr.create_array(path, shape=pixels.shape, chunks=(32, 32, 3), dtype=pixels.dtype)[:] = pixels


def tiff(**options):
    return lambda path, pixels: tifffile.imwrite(path, pixels, photometric='rgb', **options)


def assert_windows(image, pixels):
    assert image.shape == pixels.shape
    for window in WINDOWS:
        part = pixels[window.top : window.bottom, window.left : window.right]
        np.testing.assert_array_equal(image.read(window), part)


@pytest.mark.parametrize(
    'suffix, write',
    [
        ('tif', tiff()),
        ('tif', tiff(rowsperstrip=16)),
        ('tif', tiff(tile=(32, 16))),
        ('tif', tiff(tile=(32, 32), compression='zlib', predictor=True)),
        ('tif', tiff(tile=(32, 32), bigtiff=True)),
        ('npy', np.save),
        ('zarr', write_zarr),
    ],
)
def test_windows_of_a_file(suffix, write, pixels, tmp_path):
    path = tmp_path / f'scene.{suffix}'
    write(path, pixels)
    assert_windows(open_image(path), pixels)


def test_windows_of_a_gray_tiff(pixels, tmp_path):
    gray = pixels[..., 0].astype(np.uint16) * 200
    tifffile.imwrite(tmp_path / 'gray.tif', gray)
    assert_windows(open_image(tmp_path / 'gray.tif'), gray[..., None])


def test_16_bit_values_are_scaled_in_every_format(pixels, tmp_path):
    """12 bits in files of 16, as plain inference reads them."""
    twelve = pixels.astype(np.uint16) << 4
    tiff()(tmp_path / 'scene.tif', twelve)
    np.save(tmp_path / 'scene.npy', twelve)
    cv2.imwrite(str(tmp_path / 'scene.png'), twelve[..., ::-1])
    for suffix in ('tif', 'npy', 'png'):
        scale = functools.partial(to_8_bit, bit_depth=12)
        assert_windows(open_image(tmp_path / f'scene.{suffix}', scale), pixels)


@pytest.mark.parametrize('left', [0.99, 0.5, 0.001])
@pytest.mark.parametrize('write', [tiff(), tiff(tile=(32, 32), compression='zlib')])
def test_a_tiff_that_is_cut_off_is_refused(left, write, pixels, tmp_path):
    path = tmp_path / 'scene.tif'
    write(path, pixels)
    content = path.read_bytes()
    path.write_bytes(content[: int(left * len(content))])
    with pytest.raises(UserError, match='is cut off'):
        open_image(path)


@pytest.mark.parametrize(
    'name, write, message',
    [
        ('scene.npy', lambda path: path.write_bytes(b'nothing'), r'scene\.npy cannot be read'),
        ('scene.png', lambda path: path.write_bytes(b'nothing'), r'scene\.png cannot be read'),
        ('other.tif', lambda path: None, 'There is no image'),
        (
            'planar.tif',
            lambda path: tifffile.imwrite(
                path, np.zeros((3, 8, 9), np.uint8), photometric='rgb', planarconfig='separate'
            ),
            'planar channels',
        ),
    ],
)
def test_files_that_are_no_images_are_refused(name, write, message, tmp_path):
    write(tmp_path / name)
    with pytest.raises(UserError, match=message):
        open_image(tmp_path / name)
