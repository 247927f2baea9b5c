"""One self-contained page: queries, and the pictures that were found for each."""

import html
from collections.abc import Mapping, Sequence
from pathlib import Path

import cv2

from xcit_mm_runtime import ImageError, read_image

from ..html_page import html_image, html_page
from .index import Index

THUMBNAIL = 320
STYLE = """
body { max-width: 76rem; }
h2 { overflow-wrap: anywhere; }
.found { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); }
figure { background: var(--soft); border-radius: .5rem; padding: .4rem; }
figure.query { outline: 3px solid #06c; }
img { width: 100%; aspect-ratio: 4/3; object-fit: contain; }
figcaption { overflow-wrap: anywhere; }
"""


def render(results: Mapping[str, Sequence[tuple[str, float]]], index: Index) -> str:
    """Return the page as text.

    Args:
        results (Mapping): For each query, the images that were found, and their scores.
        index (Index): Where they were found.
    """
    sections = ''.join(
        f'<h2>{html.escape(query)}</h2><div class="found">{_figure(query, "query")}'
        f'{"".join(_figure(path, f"{score:.3g}") for path, score in found)}</div>'
        for query, found in results.items()
    )
    how = index.settings
    made = f'{len(index.names)} images, {how.descriptor}, {how.resolution} pixels, {how.checkpoint}'
    return html_page('Similar images', f'<p>{html.escape(made)}</p>{sections}', STYLE)


def _figure(path: str, caption: str) -> str:
    kind = ' class="query"' if caption == 'query' else ''
    return (
        f'<figure{kind} title="{html.escape(path)}">'
        f'{html_image(path, "image/jpeg", _thumbnail(path))}'
        f'<figcaption><b>{caption}</b> {html.escape(Path(path).name)}</figcaption></figure>'
    )


def _thumbnail(path: str) -> bytes:
    """Return a small JPEG; empty if the image is gone."""
    try:
        image = read_image(path)
    except ImageError:
        return b''
    scale = min(1, THUMBNAIL / max(image.shape[:2]))
    size = [max(1, round(side * scale)) for side in image.shape[1::-1]]
    return cv2.imencode('.jpg', cv2.resize(image, size, interpolation=cv2.INTER_AREA))[1].tobytes()
