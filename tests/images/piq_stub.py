"""piq, which asks torchvision for its networks: a stub stands in for that, so that piq need not bring it."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

from genwright.images.metrics.lpips import WIDTHS


def vgg16(**_):
    """torchvision's VGG-16, in whose shapes it is published; the classifier is cut short."""
    torch.manual_seed(0)
    layers, channels = [], 3
    for width, convolutions in zip(WIDTHS, (2, 2, 3, 3, 3), strict=True):
        for _ in range(convolutions):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    network = nn.Module()
    network.features, network.classifier = nn.Sequential(*layers), nn.Sequential(nn.Linear(4, 2))
    return network


def import_piq(monkeypatch):
    models, blocks = ModuleType("torchvision.models"), ("InceptionA", "InceptionC", "InceptionE")
    models.vgg16 = models.vgg19 = vgg16
    models.inception = SimpleNamespace(**dict.fromkeys(blocks, nn.Module))
    torchvision = ModuleType("torchvision")
    torchvision.models = models
    monkeypatch.setitem(sys.modules, "torchvision", torchvision)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    return pytest.importorskip("piq")
