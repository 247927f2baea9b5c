"""One self-contained page: queries, and the pictures that were found for each."""

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path

import cv2

from xcit_mm_runtime import ImageError, read_image

from .index import Index

THUMBNAIL = 320
STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.4 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #8884; overflow-wrap: anywhere; }
.found { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fill, minmax(11rem, 1fr)); }
figure { margin: 0; background: #8881; border-radius: .5rem; padding: .4rem; }
figure.query { outline: 3px solid #06c; }
img { width: 100%; aspect-ratio: 4/3; object-fit: contain; }
figcaption { font-size: .8rem; overflow-wrap: anywhere; }
"""


def render(results: Mapping[str, Sequence[tuple[str, float]]], index: Index) -> str:
    """Return the page as text.

    Args:
        results (Mapping): For each query, the images that were found, and their scores.
        index (Index): Where they were found.
    """
    sections = ''.join(
        f'<h2>{html.escape(query)}</h2><div class="found">{_figure(query, "query")}'
        f'{"".join(_figure(path, f"{score:.3f}") for path, score in found)}</div>'
        for query, found in results.items()
    )
    how = index.settings
    made = f'{len(index.names)} images, {how.descriptor}, {how.resolution} pixels, {how.checkpoint}'
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>Similar images</title><style>{STYLE}</style></head><body>'
        f'<h1>Similar images</h1><p>{html.escape(made)}</p>{sections}</body></html>\n'
    )


def _figure(path: str, caption: str) -> str:
    name, kind = html.escape(path), ' class="query"' if caption == 'query' else ''
    return (
        f'<figure{kind}><img alt="{name}" title="{name}" src="{_thumbnail(path)}">'
        f'<figcaption><b>{caption}</b> {html.escape(Path(path).name)}</figcaption></figure>'
    )


def _thumbnail(path: str) -> str:
    """Return a small JPEG as an address; empty if the image is gone."""
    try:
        image = read_image(path)
    except ImageError:
        return ''
    scale = min(1, THUMBNAIL / max(image.shape[:2]))
    size = [max(1, round(side * scale)) for side in image.shape[1::-1]]
    content = cv2.imencode('.jpg', cv2.resize(image, size, interpolation=cv2.INTER_AREA))[1]
    return f'data:image/jpeg;base64,{base64.b64encode(content.tobytes()).decode()}'
