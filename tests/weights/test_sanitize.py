"""mmengine would run text in a checkpoint, or delete what it names. Neither happens."""

import shutil
from collections import OrderedDict

import pytest
import torch
from mmengine.config import Config
from mmengine.runner import load_checkpoint

from xcit_mm.weights import CheckpointError, read_checkpoint, read_weights

from .tiny_run import train

pytestmark = pytest.mark.usefixtures('strict_reader')


@pytest.fixture
def checkpoint(tmp_path):
    train(tmp_path / 'work')
    return tmp_path / 'work' / 'epoch_1.pth'


def change(path, **runtime):
    content = read_checkpoint(path)
    content['message_hub']['runtime_info'].update(runtime)
    torch.save(content, path)
    return content


def test_config_text_is_not_run_on_resume(checkpoint, tmp_path):
    witness = tmp_path / 'witness'
    text = f'open({str(witness)!r}, "w")\n'
    Config.fromstring(text, '.py')
    assert witness.exists()  # mmengine itself does run it
    witness.unlink()
    content = change(checkpoint, cfg=text)
    content['meta'] |= {'config': text, 'cfg': text}
    torch.save(content, checkpoint)
    runner = train(tmp_path / 'work', epochs=2, load_from=str(checkpoint), resume=True)
    assert runner.iter == 4 and not witness.exists()
    # The resumed run saves its own config, as usual.
    saved = read_checkpoint(tmp_path / 'work' / 'epoch_2.pth')
    assert saved['message_hub']['runtime_info']['cfg'] != text


def test_inferencers_do_not_take_their_config_from_the_checkpoint(tmp_path):
    from mmdet.apis import DetInferencer

    witness, path = tmp_path / 'witness', tmp_path / 'x.pth'
    text = f'open({str(witness)!r}, "w")\n'
    runtime = {'message_hub': {'runtime_info': {'cfg': text}}}
    torch.save({'meta': {'cfg': text}, 'state_dict': {}, **runtime}, path)
    with pytest.raises(ValueError, match='Cannot find the config in the checkpoint'):
        DetInferencer(weights=str(path))
    assert not witness.exists()


@pytest.mark.parametrize('kind', ['file', 'folder'])
def test_only_a_best_checkpoint_is_deleted_as_one(checkpoint, tmp_path, kind):
    precious = tmp_path / 'best_of_all'
    precious.mkdir() if kind == 'folder' else precious.write_text('precious')
    best = checkpoint.with_name('best_score_epoch_1.pth')
    former = shutil.copy(checkpoint, checkpoint.with_name('former.pth'))
    change(former, best_ckpt=str(precious), best_score=0.0)
    train(tmp_path / 'work', epochs=2, load_from=str(former), resume=True)
    assert precious.exists() and best.exists()
    # mmengine's own best checkpoint is replaced, as usual.
    change(former, best_ckpt=str(best))
    train(tmp_path / 'work', epochs=2, load_from=str(former), resume=True)
    assert not best.exists() and checkpoint.with_name('best_score_epoch_2.pth').exists()


def test_steps_to_delete_are_numbers(checkpoint, tmp_path):
    (tmp_path / 'work' / 'epoch_').mkdir()
    precious = tmp_path / 'precious.pth'
    precious.touch()
    change(checkpoint, keep_ckpt_ids=['/../../precious', 1])
    train(tmp_path / 'work', epochs=2, load_from=str(checkpoint), resume=True)
    assert precious.exists()


BAD_PARTS = {
    'meta': {'meta': 3, 'state_dict': {}},
    'dataset_meta': {'meta': {'dataset_meta': 'x'}, 'state_dict': {}},
    'state_dict': {'state_dict': [1]},
    'message_hub': {'message_hub': 'x', 'state_dict': {}},
    'runtime_info': {'message_hub': {'runtime_info': 1}, 'state_dict': {}},
    'names of weights': {'state_dict': {3: torch.ones(1)}},
    'names of': {None: torch.ones(1)},
}


@pytest.mark.parametrize('part', BAD_PARTS)
def test_parts_of_the_wrong_type_are_refused(part, tmp_path):
    torch.save(BAD_PARTS[part], tmp_path / 'x.pth')
    with pytest.raises(CheckpointError, match=rf'x\.pth: .*{part}'):
        read_weights(str(tmp_path / 'x.pth'))


class Shadowed:
    """Pickled as a state dict with a replaced ``items``."""

    def __init__(self, state):
        self.state = state

    def __reduce__(self):
        attributes = {'items': torch.Size, '_metadata': 7}
        return OrderedDict, (), attributes, None, iter(self.state.items())


def test_attributes_of_pickled_dicts_are_dropped(tmp_path):
    state = torch.nn.Linear(1, 1).state_dict()
    torch.save({'state_dict': Shadowed(state)}, tmp_path / 'x.pth')
    assert torch.load(tmp_path / 'x.pth', weights_only=False)['state_dict'].items is torch.Size
    model = torch.nn.Linear(1, 1)
    load_checkpoint(model, str(tmp_path / 'x.pth'), strict=True)
    assert torch.equal(model.weight, state['weight'])
