"""Looking up between layers: before each of them, as long as it lasts, without a trace in what is computed."""

import pytest
import torch
from torch import nn

from models.portable.unet import UNet
from models.watching import between_layers


class Enough(Exception):
    pass


def test_every_layer_is_looked_at_once_in_a_pass_and_none_afterwards():
    network = nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.Tanh(), nn.Linear(4, 2)))
    looks: list[int] = []
    with between_layers(network.modules(), lambda: looks.append(1)):
        network(torch.zeros(5, 3))
        assert len(looks) == 3, "containers compute nothing themselves"
    network(torch.zeros(5, 3))
    assert len(looks) == 3


def test_a_computation_ends_where_it_was_looked_up_from_and_the_network_is_as_before():
    unet = UNet(1, 8, 8, 2, features=4, blocks=1)
    given = torch.rand(2, 1, 8, 8), torch.rand(2), torch.tensor([0, 1])
    whole, computed = unet(*given), list[nn.Module]()
    for module in (unet.stem, unet.out):
        module.register_forward_hook(lambda layer, *_: computed.append(layer))
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 10:
            raise Enough

    with pytest.raises(Enough), between_layers(unet.modules(), look):
        unet(*given)
    assert computed == [unet.stem]
    assert torch.equal(unet(*given), whole)
