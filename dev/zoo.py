"""``python -m dev.zoo``: writes the metafiles that MIM reads, and the model-zoo page.

Both come from the paper's tables and the table of published weights, so they cannot disagree.
Run it in a clone after changing either.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from xcit_mm.files import write_atomically
from xcit_mm.stats import config_parameters, paper_tables
from xcit_mm.tables import format_table
from xcit_mm.weights import published

PAPER = {
    'URL': 'https://arxiv.org/abs/2106.09681',
    'Title': 'XCiT: Cross-Covariance Image Transformers',
}
# name in the tables, config, weights, and (task, data set, {metric: column of the table})
HEADS: tuple[dict[str, Any], ...] = (
    {
        'folder': 'detection',
        'collection': 'Mask R-CNN on XCiT',
        'data': 'COCO',
        'table': 'coco_mask_rcnn_3x',
        'params': 0,
        'config': 'configs/detection/mask_rcnn_xcit_{}_3x.py',
        'weights': 'coco/{}',
        'results': (
            ('Object Detection', {'box AP': 1}),
            ('Instance Segmentation', {'mask AP': 4}),
        ),
    },
    {
        'folder': 'segmentation',
        'collection': 'Semantic FPN on XCiT',
        'data': 'ADE20K',
        'table': 'ade20k',
        'params': 0,
        'config': 'configs/segmentation/sem_fpn_xcit_{}_80k.py',
        'weights': 'ade20k/sem_fpn/{}',
        'results': (('Semantic Segmentation', {'mIoU': 1}),),
    },
    {
        'folder': 'segmentation',
        'collection': 'UperNet on XCiT',
        'data': 'ADE20K',
        'table': 'ade20k',
        'params': 2,
        'config': 'configs/segmentation/upernet_xcit_{}_160k.py',
        'weights': 'ade20k/upernet/{}',
        'results': (('Semantic Segmentation', {'mIoU': 3}),),
    },
)


def metafiles() -> dict[str, str]:
    """The content of each metafile, and of ``model-index.yml``, by path."""
    files = {}
    folders = dict.fromkeys(head['folder'] for head in HEADS)
    for folder in folders:
        heads = [head for head in HEADS if head['folder'] == folder]
        content = {
            'Collections': [_collection(head) for head in heads],
            'Models': [model for head in heads for model in _models(head)],
        }
        files[f'configs/{folder}/metafile.yml'] = _yaml(content)
    imports = {'Import': list(files)}
    return {**files, 'model-index.yml': _yaml(imports)}


def _yaml(content: dict) -> str:
    header = '# Made by `python -m dev.zoo`.\n'
    return header + yaml.safe_dump(content, sort_keys=False, width=100)


def _collection(head: dict[str, Any]) -> dict[str, Any]:
    return {
        'Name': head['collection'],
        'Metadata': {'Training Data': head['data'], 'Architecture': ['XCiT', 'FPN']},
        'Paper': PAPER,
        'README': 'docs/model_zoo.md',
    }


def _models(head: dict[str, Any]) -> list[dict[str, Any]]:
    models = []
    for size, values in paper_tables()[head['table']]['xcit'].items():
        config = head['config'].format(size.lower().replace('/', '_'))
        results = [
            {
                'Task': task,
                'Dataset': head['data'],
                'Metrics': {name: values[column] for name, column in metrics.items()},
            }
            for task, metrics in head['results']
        ]
        models.append(
            {
                'Name': Path(config).stem,
                'In Collection': head['collection'],
                'Config': config,
                'Metadata': {'Training Data': head['data']},
                'Results': results,
                'Weights': published()[head['weights'].format(size.lower())],
            }
        )
    return models


def page() -> str:
    """The model-zoo page."""
    parts = [
        '# Model zoo',
        'Made by `python -m dev.zoo`. Results are the paper’s; the weights are the authors’, '
        'and load as they are: by short name (`xcit://...`) wherever a checkpoint is named. '
        'Parameters in millions: the paper’s, and ours counted on the whole model (the paper’s '
        'ADE20k columns leave out the layers that rescale the features, see '
        '`tools/model_stats.py --paper`).',
    ]
    for head in HEADS:
        rows = []
        for size, values in paper_tables()[head['table']]['xcit'].items():
            config = head['config'].format(size.lower().replace('/', '_'))
            metrics = {
                name: values[column]
                for _, columns in head['results']
                for name, column in columns.items()
            }
            short = head['weights'].format(size.lower())
            parameters = config_parameters(config.removeprefix('configs/'))
            rows.append(
                {
                    'backbone': f'XCiT-{size}',
                    'params': values[head['params']],
                    'ours': parameters // 100_000 / 10,
                    **metrics,
                    'config': f'[{Path(config).stem}](../{config})',
                    'weights': f'[`xcit://{short}`]({published()[short]})',
                }
            )
        parts += [f'## {head["collection"]}, {head["data"]}', format_table(rows, 'markdown')]
    rows = [
        {
            'weights': f'[`xcit://{name}`]({url})',
            'trained': 'DINO' if 'dino' in name else 'ImageNet',
        }
        for name, url in published().items()
        if not name.startswith(('coco', 'ade20k'))
    ]
    parts += [
        '## Pretrained backbones',
        'For `init_cfg=dict(type="Pretrained", checkpoint=...)` of the backbone, or for '
        '`XCiTClassifier`. A size alone, such as `xcit://s12/8`, means the weights from which the '
        'paper starts detectors and segmentors: `xcit://s12/8/384_dist`.',
        format_table(rows, 'markdown'),
    ]
    return '\n\n'.join(parts) + '\n'


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog='python -m dev.zoo', description=__doc__)
    parser.add_argument('--root', type=Path, default=Path(), help='the clone (default: here)')
    root = parser.parse_args(argv).root
    for path, text in {**metafiles(), 'docs/model_zoo.md': page()}.items():
        write_atomically(root / path, text)
        print(f'wrote {root / path}')
    return 0


if __name__ == '__main__':
    sys.exit(main())
