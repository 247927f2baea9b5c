"""Pages that are one file: style, pictures and tables inside."""

import base64
import html

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
.cards { display: flex; flex-wrap: wrap; gap: 1rem; margin: 1.5rem 0; }
.card { background: var(--soft); border-radius: .6rem; padding: .8rem 1.4rem; text-align: center; }
.card b { display: block; font-size: 2.2rem; font-variant-numeric: tabular-nums; }
.curve { background: #fff; border-radius: .6rem; padding: .5rem; }
.curve img { width: 100%; }
.pictures { display: grid; gap: .8rem; }
.pictures { grid-template-columns: repeat(auto-fill, minmax(26rem, 1fr)); }
.pictures img { width: 100%; border-radius: .4rem; }
figure { margin: 0; } figcaption { font-size: .85rem; }
pre { background: var(--soft); padding: .8rem; border-radius: .6rem; white-space: pre-wrap; }
td, th { text-align: left; padding: .1rem 1.2rem .1rem 0; font-variant-numeric: tabular-nums; }
"""


def html_page(title: str, body: str, style: str = '') -> str:
    """Return a page as text.

    Args:
        title (str): The heading, plain text.
        body (str): What follows it, HTML.
        style (str): More rules of CSS, which prevail. Defaults to none.
    """
    title = html.escape(title)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{title}</title><style>{STYLE}{style}</style></head><body>'
        f'<h1>{title}</h1>{body}</body></html>\n'
    )


def html_image(alt: str, kind: str, content: bytes) -> str:
    """Return a picture as HTML.

    Args:
        alt (str): What it shows, plain text.
        kind (str): Its media type, such as ``image/png``.
        content (bytes): The file.
    """
    data = base64.b64encode(content).decode()
    return f'<img alt="{html.escape(alt)}" src="data:{kind};base64,{data}">'
