"""What training programs use around a model: optimizers, schedules, averaging, clipping, parametrizations, torch's own
transformer. Three steps on the device are three steps on the CPU."""

import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F

pytestmark = pytest.mark.filterwarnings("ignore")

optim, schedules = torch.optim, torch.optim.lr_scheduler
OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "sgd_fused": lambda p: optim.SGD(p, 0.1, momentum=0.9, fused=True),
    "adam": lambda p: optim.Adam(p, amsgrad=True, weight_decay=0.1),
    "adam_tensor_lr": lambda p: optim.Adam(p, lr=torch.tensor(0.01)),
    "adam_fused": lambda p: optim.Adam(p, fused=True),
    "adam_single": lambda p: optim.Adam(p, foreach=False),
    "adamw": lambda p: optim.AdamW(p, maximize=True),
    "adamax": optim.Adamax,
    "nadam": optim.NAdam,
    "radam": optim.RAdam,
    "rmsprop": lambda p: optim.RMSprop(p, momentum=0.9, centered=True),
    "rprop": optim.Rprop,
    "asgd": optim.ASGD,
    "adadelta": optim.Adadelta,
    "adagrad": optim.Adagrad,
    "adafactor": optim.Adafactor,
    "lbfgs": lambda p: optim.LBFGS(p, max_iter=4, line_search_fn="strong_wolfe"),
}
SCHEDULES = {
    "one_cycle": lambda o: schedules.OneCycleLR(o, 0.1, total_steps=5),
    "cosine": lambda o: schedules.CosineAnnealingLR(o, 3),
    "warm_restarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, 2),
    "plateau": lambda o: schedules.ReduceLROnPlateau(o, patience=0),
    "sequential": lambda o: schedules.SequentialLR(
        o, [schedules.ConstantLR(o), schedules.ExponentialLR(o, 0.9)], milestones=[1]
    ),
    "chained": lambda o: schedules.ChainedScheduler([schedules.LinearLR(o), schedules.ExponentialLR(o, 0.9)]),
}
PARAMETRIZATIONS = {
    "weight_norm": nn.utils.parametrizations.weight_norm,
    "old_weight_norm": nn.utils.weight_norm,
    "spectral_norm": nn.utils.parametrizations.spectral_norm,
    "old_spectral_norm": nn.utils.spectral_norm,
    "orthogonal": nn.utils.parametrizations.orthogonal,
}


def perceptron():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))


def batch(k):
    generator = torch.Generator().manual_seed(k)
    return torch.randn(5, 8, generator=generator), torch.randint(4, (5,), generator=generator)


def state(module):
    return [value.detach().cpu().clone() for value in module.state_dict().values()]


def train(device, make_optimizer, make_schedule=None):
    model = perceptron().to(device)
    optimizer = make_optimizer(model.parameters())
    schedule = make_schedule and make_schedule(optimizer)
    results = []
    for k in range(3):
        x, y = (t.to(device) for t in batch(k))

        def loss_and_gradients(x=x, y=y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        loss = optimizer.step(loss_and_gradients)
        if isinstance(schedule, schedules.ReduceLROnPlateau):
            schedule.step(loss)
        elif schedule:
            schedule.step()
        results += [loss.detach().cpu(), torch.as_tensor(optimizer.param_groups[0]["lr"]).cpu().clone()]
    return results + state(model)


def compare(program, rounds=2, rtol=2e-4, atol=2e-5):
    expected = program("cpu")
    for _ in range(rounds):
        torch.testing.assert_close(program("neuron"), expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer(name):
    # Its line search magnifies: inputs one unit in the last place away give parameters 3e-4 away, CPU against CPU.
    loose = {"rtol": 2e-3, "atol": 1e-3} if name == "lbfgs" else {}
    compare(lambda device: train(device, OPTIMIZERS[name]), **loose)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedule(name):
    compare(lambda device: train(device, lambda p: optim.SGD(p, 0.1, momentum=0.9), SCHEDULES[name]))


@pytest.mark.parametrize("name", PARAMETRIZATIONS)
def test_parametrization(name):
    def program(device):
        torch.manual_seed(0)
        layer = PARAMETRIZATIONS[name](nn.Linear(6, 6)).to(device)
        optimizer = optim.SGD(layer.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            layer(torch.ones(2, 6, device=device)).square().sum().backward()
            optimizer.step()
        return state(layer)

    compare(program)


def test_weight_averaging_and_clipping():
    def program(device):
        model = perceptron().to(device)
        swa = optim.swa_utils
        averages = [
            swa.AveragedModel(model, multi_avg_fn=swa.get_ema_multi_avg_fn(0.9)),
            swa.AveragedModel(model, use_buffers=True),
        ]
        optimizer = optim.SGD(model.parameters(), 0.1)
        norms = []
        for k in range(3):
            x, y = (t.to(device) for t in batch(k))
            optimizer.zero_grad()
            (100 * F.cross_entropy(model(x), y)).backward()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=(2.0, 1.0, float("inf"))[k]).cpu())
            nn.utils.clip_grad_value_(model.parameters(), 0.05)
            optimizer.step()
            for average in averages:
                average.update_parameters(model)
        return norms + state(averages[0]) + state(averages[1])

    compare(program)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_torchs_transformer_on_padded_batches(training, batch_first):
    """In evaluation torch would pack a padded batch into a nested tensor, which the device does not have."""
    torch.manual_seed(0)
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=batch_first), 2)
    x = torch.randn(3, 5, 16)
    padded = torch.zeros((3, 5) if batch_first else (5, 3), dtype=torch.bool)
    padded[:, -1] = True

    def program(device):
        with torch.set_grad_enabled(training):
            y = model.to(device).train(training)(x.to(device), src_key_padding_mask=padded.to(device)).cpu()
        return (y if batch_first else y.transpose(0, 1)).detach()[~padded]

    compare(program)


@pytest.mark.parametrize("momentum", [None, 0.1])
@pytest.mark.parametrize("make", [nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d])
def test_batch_norm(make, momentum):
    shape = (4, 3) + {nn.BatchNorm1d: (5,), nn.BatchNorm2d: (3, 3), nn.BatchNorm3d: (2, 2, 2)}[make]

    def program(device):
        torch.manual_seed(0)
        norm = make(3, momentum=momentum).to(device)
        results = []
        for training in (True, True, False):
            x = torch.randn(shape).to(device).requires_grad_()
            y = norm.train(training)(x)
            (y**3).sum().backward()
            results += [y.detach().cpu(), x.grad.cpu()]
        return results + state(norm)

    compare(program)
