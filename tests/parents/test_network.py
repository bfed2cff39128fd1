"""Names, shapes and numbers of parameters, against published and hand-worked numbers."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, fx, nn

from aprune.parents import build_parent, parent_names
from aprune.parents.resnet import Subsample

IMAGENET = SimpleNamespace(shape=(3, 224, 224), num_classes=1000)
CIFAR = SimpleNamespace(shape=(3, 32, 32), num_classes=10)
DIGITS = SimpleNamespace(shape=(1, 8, 8), num_classes=10)


def build_without_storage(name: str, task: SimpleNamespace) -> nn.Module:
    with torch.device("meta"):
        return build_parent(name, task)


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("vgg11", 132_863_336),
        ("vgg13", 133_047_848),
        ("vgg16", 138_357_544),
        ("vgg19", 143_667_240),
        ("vgg11_bn", 132_868_840),
        ("vgg13_bn", 133_053_736),
        ("vgg16_bn", 138_365_992),
        ("vgg19_bn", 143_678_248),
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
    ],
)
def test_as_many_parameters_as_torchvision_publishes(name: str, parameters: int) -> None:
    assert count(build_without_storage(name, IMAGENET)) == parameters


@pytest.mark.parametrize(
    ("name", "task", "parameters"),
    [
        ("vgg19", CIFAR, 139_611_210),
        ("cifar_vgg16", CIFAR, 14_710_464 + 2 * 4_224 + 4_224 + 5_130),
        ("resnet20", CIFAR, 269_722),
        ("resnet56", CIFAR, 853_018),
        ("logistic", DIGITS, 64 * 10 + 10),
        ("mlp", DIGITS, (64 * 256 + 256) + (256 * 128 + 128) + (128 * 10 + 10)),
        ("conv", DIGITS, (9 * 32 + 32) + (288 * 64 + 64) + (576 * 64 + 64) + (256 * 10 + 10)),
        ("conv_bn", DIGITS, 58_314 + 2 * (32 + 64 + 64)),
    ],
)
def test_as_many_parameters_as_worked_out(
    name: str, task: SimpleNamespace, parameters: int
) -> None:
    assert count(build_without_storage(name, task)) == parameters


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("logistic", {"fc.weight": (10, 3072), "fc.bias": (10,)}),
        ("mlp", {"fc1.weight": (256, 3072), "fc2.weight": (128, 256), "fc3.bias": (10,)}),
        ("conv", {"features.0.weight": (32, 3, 3, 3), "features.2.weight": (64, 32, 3, 3)}),
        ("conv_bn", {"features.1.running_mean": (32,), "classifier.weight": (10, 256)}),
        (
            "vgg19",
            {
                "features.0.weight": (64, 3, 3, 3),
                "features.0.bias": (64,),
                "features.34.weight": (512, 512, 3, 3),
                "classifier.0.weight": (4096, 25088),
                "classifier.3.weight": (4096, 4096),
                "classifier.6.weight": (10, 4096),
                "classifier.6.bias": (10,),
            },
        ),
        ("vgg11", {"features.18.weight": (512, 512, 3, 3)}),
        ("vgg13", {"features.22.weight": (512, 512, 3, 3)}),
        ("vgg16", {"features.28.weight": (512, 512, 3, 3)}),
        ("vgg11_bn", {"features.25.weight": (512, 512, 3, 3), "features.26.bias": (512,)}),
        ("vgg19_bn", {"features.1.running_var": (64,), "features.49.weight": (512, 512, 3, 3)}),
        (
            "resnet18",
            {
                "conv1.weight": (64, 3, 7, 7),
                "bn1.num_batches_tracked": (),
                "layer1.1.conv2.weight": (64, 64, 3, 3),
                "layer2.0.downsample.0.weight": (128, 64, 1, 1),
                "layer2.0.downsample.1.bias": (128,),
                "fc.weight": (10, 512),
            },
        ),
        ("resnet34", {"layer3.5.bn2.weight": (256,), "layer4.2.conv1.weight": (512, 512, 3, 3)}),
        (
            "resnet50",
            {
                "layer1.0.conv3.weight": (256, 64, 1, 1),
                "layer1.0.downsample.0.weight": (256, 64, 1, 1),
                "layer4.0.conv1.weight": (512, 1024, 1, 1),
                "layer4.2.bn3.running_mean": (2048,),
                "fc.weight": (10, 2048),
            },
        ),
        (
            "resnet20",
            {
                "conv1.weight": (16, 3, 3, 3),
                "bn1.weight": (16,),
                "layer1.2.conv2.weight": (16, 16, 3, 3),
                "layer3.0.conv1.weight": (64, 32, 3, 3),
                "fc.weight": (10, 64),
            },
        ),
        ("resnet56", {"layer3.8.conv2.weight": (64, 64, 3, 3)}),
    ],
)
def test_names_and_shapes(name: str, shapes: dict[str, tuple[int, ...]]) -> None:
    state = build_without_storage(name, CIFAR).state_dict()
    assert {key: tuple(state[key].shape) for key in shapes} == shapes


def test_parts_without_parameters_are_torchvisions() -> None:
    vgg = build_without_storage("vgg19", CIFAR)
    assert vgg.avgpool.output_size == (7, 7)
    assert (vgg.classifier[2].p, vgg.classifier[5].p) == (0.5, 0.5)
    assert [i for i, m in enumerate(vgg.features) if isinstance(m, nn.MaxPool2d)] == [
        4, 9, 18, 27, 36,
    ]  # fmt: skip
    resnet = build_without_storage("resnet50", CIFAR)
    block = resnet.layer2[0]
    assert (block.conv1.stride, block.conv2.stride) == ((1, 1), (2, 2))
    assert (resnet.conv1.stride, resnet.maxpool.stride) == ((2, 2), 2)


@pytest.mark.parametrize("name", parent_names())
@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 33, 40)])
def test_scores_of_any_channels_and_size(name: str, shape: tuple[int, int, int]) -> None:
    task = SimpleNamespace(shape=shape, num_classes=7)
    scores = build_without_storage(name, task)(torch.empty(2, *shape, device="meta"))
    assert scores.shape == (2, 7)


@pytest.mark.parametrize("name", ["logistic", "mlp", "conv", "conv_bn", "resnet20", "resnet18"])
def test_digits_can_be_learnt(name: str) -> None:
    network = build_parent(name, DIGITS)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(8, *DIGITS.shape, generator=generator)
    labels = torch.arange(8)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.05)
    losses = []
    for _ in range(10):
        loss = nn.functional.cross_entropy(network(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert all(parameter.grad is not None for parameter in network.parameters())
    assert losses[-1] < 0.7 * losses[0]


def test_subsample_keeps_every_second_pixel_between_zero_channels() -> None:
    images = torch.arange(2 * 3 * 3, dtype=torch.float32).reshape(1, 2, 3, 3)
    out = Subsample(2, 5, 2)(images)
    zeros = [[0.0, 0.0], [0.0, 0.0]]
    kept = [[[0.0, 2.0], [6.0, 8.0]], [[9.0, 11.0], [15.0, 17.0]]]
    assert out.tolist() == [[zeros, *kept, zeros, zeros]]


def test_silenced_blocks_of_resnet20_leave_the_shortcuts() -> None:
    """With the last norm of each block at zero, what is left can be followed by hand."""
    network = build_parent("resnet20", CIFAR).eval()
    for name, parameter in network.named_parameters():
        if name.endswith("bn2.weight"):
            nn.init.zeros_(parameter)
    images = torch.randn(2, *CIFAR.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        stem = torch.relu(network.bn1(network.conv1(images)))
        features = torch.zeros(2, 64)
        # 8 zero channels before the second stage's, 16 more before the third's.
        features[:, 24:40] = stem[:, :, ::4, ::4].mean(dim=(2, 3))
        torch.testing.assert_close(network(images), network.fc(features))


@pytest.mark.parametrize("name", parent_names())
def test_can_be_traced(name: str) -> None:
    graph = fx.symbolic_trace(build_without_storage(name, CIFAR))
    assert graph(torch.empty(2, *CIFAR.shape, device="meta")).shape == (2, 10)


@pytest.mark.parametrize("name", ["mlp", "conv_bn", "resnet20"])
def test_compiles_into_one_graph(name: str) -> None:
    network = build_parent(name, DIGITS).eval()
    images = torch.randn(2, *DIGITS.shape, generator=torch.Generator().manual_seed(0))
    compiled: Tensor = torch.compile(network, backend="eager", fullgraph=True)(images)
    assert torch.equal(compiled, network(images))
