"""What the tests of activations.memory share."""

from torch import nn

F32 = 4


class Calls(nn.Module):
    """A module of a function."""

    def __init__(self, function, **modules):
        super().__init__()
        self.function = function
        for name, module in modules.items():
            setattr(self, name, module)

    def forward(self, *args):
        return self.function(self, *args)
