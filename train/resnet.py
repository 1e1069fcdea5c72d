"""
The ResNet-18 of cifar10.py: He et al. 2015, for images of 32x32 pixels and 10 classes.

Tensor shapes: N images, C channels, H height, W width.
"""

import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut: He et al. 2015, figure 2."""

    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if channels_in != channels:
            self.shortcut.append(nn.Conv2d(channels_in, channels, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(channels))

    def forward(self, x_NCHW):
        y_NCHW = F.relu(self.norm1(self.conv1(x_NCHW)))
        return F.relu(self.norm2(self.conv2(y_NCHW)) + self.shortcut(x_NCHW))


def resnet18(width):
    """Returns ResNet-18 for 32x32 pixels: a 3x3 stem of stride 1, and no max pool to shrink them at once."""
    stem = nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
    blocks = [Block(width, width, 1), Block(width, width, 1)]
    for w in (width, 2 * width, 4 * width):
        blocks += [Block(w, 2 * w, 2), Block(2 * w, 2 * w, 1)]
    return nn.Sequential(
        *stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 10)
    )
