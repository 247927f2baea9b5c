"""Writes the drawn shapes as people keep their own data: COCO, VOC, YOLO, folders of labels."""

import json
import shutil

import cv2
import numpy as np
import yaml

SPLITS = {'train': 'train2017', 'val': 'val2017'}
BOX = ('xmin', 'ymin', 'xmax', 'ymax')


def read_shapes(shapes):
    """split -> the classes, and for each image its path, size and objects (name, box, polygons)."""
    found = {}
    for split, folder in SPLITS.items():
        content = json.loads((shapes / f'coco/annotations/instances_{folder}.json').read_text())
        names = {category['id']: category['name'] for category in content['categories']}
        images = []
        for image in content['images']:
            objects = [
                (names[one['category_id']], one['bbox'], one['segmentation'])
                for one in content['annotations']
                if one['image_id'] == image['id'] and not one['iscrowd']
            ]
            path = shapes / 'coco' / folder / image['file_name']
            images.append((path, (image['width'], image['height']), objects))
        found[split] = (list(names.values()), images)
    return found


def xml(objects, size=None, difficult=()):
    """The text of a VOC file, of objects (name, (left, top, right, bottom))."""
    parts = ['<annotation><filename>wrong.jpg</filename>']
    if size:
        parts.append(f'<size><width>{size[0]}</width><height>{size[1]}</height></size>')
    for index, (name, box) in enumerate(objects):
        corners = ''.join(f'<{k}>{v}</{k}>' for k, v in zip(BOX, box, strict=True))
        flag = int(index in difficult)
        parts.append(
            f'<object><name>{name}</name><difficult>{flag}</difficult>'
            f'<bndbox>{corners}</bndbox></object>'
        )
    return ''.join([*parts, '</annotation>'])


def write_voc(shapes, root, lists=True):
    """JPEGImages, Annotations and, with lists, ImageSets/Main."""
    for folder in ('JPEGImages', 'Annotations', 'ImageSets/Main'):
        (root / folder).mkdir(parents=True)
    for split, (_, images) in read_shapes(shapes).items():
        stems = []
        for path, size, objects in images:
            stems.append(f'{split}_{path.stem}')
            shutil.copy(path, root / 'JPEGImages' / f'{stems[-1]}.jpg')
            corners = [(name, (x, y, x + w, y + h)) for name, (x, y, w, h), _ in objects]
            (root / 'Annotations' / f'{stems[-1]}.xml').write_text(xml(corners, size))
        if lists:
            (root / 'ImageSets' / 'Main' / f'{split}.txt').write_text('\n'.join(stems) + '\n')
            flags = ''.join(f'{stem}  1\n' for stem in stems)
            (root / 'ImageSets' / 'Main' / f'disc_{split}.txt').write_text(flags)
    return root


def write_yolo(shapes, root, polygons=False, description=True):
    """images/SPLIT, labels/SPLIT and data.yaml; without a description, one folder of it all."""
    classes = ()
    for split, (classes, images) in read_shapes(shapes).items():
        image_folder = root / 'images' / split if description else root
        label_folder = root / 'labels' / split if description else root
        image_folder.mkdir(parents=True, exist_ok=True)
        label_folder.mkdir(parents=True, exist_ok=True)
        for path, (width, height), objects in images:
            stem = f'{split}_{path.stem}'
            shutil.copy(path, image_folder / f'{stem}.jpg')
            lines = []
            for name, (x, y, w, h), outlines in objects:
                numbers = [(x + w / 2) / width, (y + h / 2) / height, w / width, h / height]
                if polygons:
                    sides = (width, height)
                    numbers = [n / sides[i % 2] for i, n in enumerate(outlines[0])]
                lines.append(' '.join(map(str, [classes.index(name), *numbers])))
            (label_folder / f'{stem}.txt').write_text('\n'.join(lines))
    if description:
        content = {'path': '/not/here', 'train': 'images/train', 'val': 'images/val'}
        (root / 'data.yaml').write_text(yaml.dump({**content, 'names': dict(enumerate(classes))}))
    else:
        (root / 'classes.txt').write_text('\n'.join(classes) + '\n')
    return root


def write_coco(shapes, root):
    """One file for all images, which are elsewhere: as annotation tools export them."""
    shutil.copytree(shapes / 'coco/train2017', root / 'pictures')
    content = json.loads((shapes / 'coco/annotations/instances_train2017.json').read_text())
    content['categories'].insert(0, {'id': 99, 'name': 'never used'})
    (root / 'result.json').write_text(json.dumps(content))
    return root


def write_labels(shapes, root):
    """images/SPLIT and labels/SPLIT, with classes from 0."""
    for split, folder in {'train': 'training', 'val': 'validation'}.items():
        shutil.copytree(shapes / 'ade/images' / folder, root / 'images' / split)
        shutil.copytree(shapes / 'ade/annotations' / folder, root / 'labels' / split)
        for path in (root / 'labels' / split).iterdir():
            labels = cv2.imread(str(path), cv2.IMREAD_UNCHANGED)
            cv2.imwrite(str(path), labels - 1)  # 0, unlabeled, becomes 255
    return root


def write_flat(shapes, root):
    """Images and labels from 1 without splits, in folders and with names of other habits."""
    (root / 'imgs').mkdir(parents=True)
    (root / 'masks').mkdir()
    for path in (shapes / 'ade/images/training').iterdir():
        shutil.copy(path, root / 'imgs' / f'{path.stem}.JPG')
    for path in (shapes / 'ade/annotations/training').iterdir():
        shutil.copy(path, root / 'masks' / f'{path.stem}_mask.png')
    return root


def write_label(path, values):
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.array(values, np.uint8)
    cv2.imwrite(str(path), values if values.ndim > 1 else np.resize(values, (32, 32)))


def write_values(root, values):
    """Three black images with the same labels: values that are repeated, or an image."""
    for name in ('a', 'b', 'c'):
        write_label(root / f'labels/{name}.png', values)
        write_label(root / f'images/{name}.png', np.zeros((32, 32, 3)))


def draw_cells(width, height, count, seed):
    """An image with many small ellipses that touch, and the number of each pixel's ellipse."""
    rng = np.random.default_rng(seed)
    numbers = np.zeros((height, width), np.uint16)
    for number in range(1, count + 1):
        center, axes = rng.integers(0, (width, height)), rng.integers(4, 9, 2)
        cv2.ellipse(
            numbers, center.tolist(), axes.tolist(), rng.integers(180).item(), 0, 360, number, -1
        )
    border = cv2.morphologyEx(numbers, cv2.MORPH_GRADIENT, np.ones((3, 3))) > 0
    image = np.where(numbers > 0, 170, 40) - 60 * (border & (numbers > 0))
    image = np.repeat(image[..., None], 3, axis=2) + rng.normal(0, 8, (height, width, 3))
    return image.clip(0, 255).astype(np.uint8), numbers


# width, height and cells of each image
CELLS = [(96, 96, 25), (96, 128, 30), (160, 120, 60), (320, 400, 320)]


def write_cells(root, layout='folders', sizes=CELLS):
    """Drawn cells, as one mask file per object or as numbers of 8, 16 or 24 bits.

    Layouts: ``folders``, ``named`` and ``flat`` of files; ``8 bit``, ``16 bit`` and ``24 bit`` of
    numbers.
    """
    for index, (width, height, count) in enumerate(sizes):
        image, numbers = draw_cells(width, height, count, index)
        name = f'cell_{index}'
        home = root / name if layout == 'folders' else root
        masks = {
            'folders': home / 'masks',
            'named': home / 'masks' / name,
        }.get(layout, home / 'masks')
        (home / 'images').mkdir(parents=True, exist_ok=True)
        masks.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(home / 'images' / f'{name}.png'), image)
        if layout in ('folders', 'named', 'flat'):
            start = f'{name}_' if layout == 'flat' else ''
            for number in np.unique(numbers[numbers > 0]):
                mask = (numbers == number).astype(np.uint8) * 255
                cv2.imwrite(str(masks / f'{start}{number:03}.png'), mask)
        elif layout == '8 bit':
            cv2.imwrite(str(masks / f'{name}.png'), numbers.astype(np.uint8))
        elif layout == '16 bit':
            cv2.imwrite(str(masks / f'{name}.png'), numbers)
        else:
            blue = np.zeros_like(numbers)
            red_green = [numbers // 256, numbers % 256]  # OpenCV writes blue, green, red
            cv2.imwrite(str(masks / f'{name}.png'), cv2.merge([blue, *red_green]).astype(np.uint8))
    return root
