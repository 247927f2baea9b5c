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


def assert_windows(image, pixels):
    assert image.shape == pixels.shape
    for window in WINDOWS:
        part = pixels[window.top : window.bottom, window.left : window.right]
        np.testing.assert_array_equal(image.read(window), part)


@pytest.mark.parametrize(
    'options',
    [
        {},
        {'rowsperstrip': 16},
        {'tile': (32, 16)},
        {'tile': (32, 32), 'compression': 'zlib', 'predictor': True},
        {'tile': (32, 32), 'bigtiff': True},
    ],
)
def test_windows_of_a_tiff(options, pixels, tmp_path):
    path = tmp_path / 'scene.tif'
    tifffile.imwrite(path, pixels, photometric='rgb', **options)
    assert_windows(open_image(path), pixels)


def test_windows_of_arrays_and_small_pictures(pixels, tmp_path):
    np.save(tmp_path / 'scene.npy', pixels)
    assert_windows(open_image(tmp_path / 'scene.npy'), pixels)
    gray = pixels[..., 0].astype(np.uint16) * 200
    tifffile.imwrite(tmp_path / 'gray.tif', gray)
    assert_windows(open_image(tmp_path / 'gray.tif'), gray[..., None])


def test_16_bit_values_are_scaled_in_every_format(pixels, tmp_path):
    """12 bits in files of 16, as plain inference reads them."""
    twelve = pixels.astype(np.uint16) << 4
    tifffile.imwrite(tmp_path / 'scene.tif', twelve, photometric='rgb')
    np.save(tmp_path / 'scene.npy', twelve)
    cv2.imwrite(str(tmp_path / 'scene.png'), twelve[..., ::-1])
    for suffix in ('tif', 'npy', 'png'):
        scale = functools.partial(to_8_bit, bit_depth=12)
        assert_windows(open_image(tmp_path / f'scene.{suffix}', scale), pixels)


def test_windows_of_a_zarr_array(pixels, tmp_path):
    zarr = pytest.importorskip('zarr')
    array = zarr.create_array(
        tmp_path / 'scene.zarr', shape=pixels.shape, chunks=(32, 32, 3), dtype=pixels.dtype
    )
    array[:] = pixels
    assert_windows(open_image(tmp_path / 'scene.zarr'), pixels)


@pytest.mark.parametrize('left', [0.99, 0.5, 0.001])
@pytest.mark.parametrize('options', [{}, {'tile': (32, 32), 'compression': 'zlib'}])
def test_a_tiff_that_is_cut_off_is_refused(left, options, pixels, tmp_path):
    path = tmp_path / 'scene.tif'
    tifffile.imwrite(path, pixels, photometric='rgb', **options)
    content = path.read_bytes()
    path.write_bytes(content[: int(left * len(content))])
    with pytest.raises(UserError, match='is cut off'):
        open_image(path)


def test_files_that_are_no_images_are_refused(tmp_path):
    (tmp_path / 'scene.npy').write_bytes(b'nothing')
    with pytest.raises(UserError, match=r'scene\.npy cannot be read'):
        open_image(tmp_path / 'scene.npy')
    with pytest.raises(UserError, match='There is no image'):
        open_image(tmp_path / 'other.tif')
