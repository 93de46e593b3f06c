# SPDX-License-Identifier: Apache-2.0
"""PyTorch, in float64 and from the same start weights and batches, as an oracle for gradients, losses and predictions."""
import array
import gzip
import math
import os
import subprocess
import sys
import tempfile
import unittest

try:
    import torch
except ImportError:
    # CMake may have found another Python than the one that a distribution's PyTorch is for.
    other = "/usr/bin/python3"
    if os.path.realpath(sys.executable) != os.path.realpath(other) and os.path.exists(other) and subprocess.run(
            [other, "-c", "import torch"], stderr=subprocess.DEVNULL).returncode == 0:
        os.execv(other, [other, "-B", *sys.argv])
    print("SKIPPED: PyTorch is not installed")
    sys.exit(77)

import safetensors_file
from program import record

DATA = os.environ.get("LOCKSTEP_DATA") or "/usr/share/datasets/fashion-mnist"
if not os.path.exists(os.path.join(DATA, "train-images-idx3-ubyte.gz")):
    print("SKIPPED: no Fashion-MNIST in " + DATA)
    sys.exit(77)

NAMES = ("W1", "b1", "W2", "b2", "W3", "b3", "W4", "b4")
BATCH, SEED, STEPS = 256, 1, 200


def idx(name, header_bytes):
    with gzip.open(os.path.join(DATA, name)) as file:
        return torch.frombuffer(bytearray(file.read()[header_bytes:]), dtype=torch.uint8)


def philox(counter, key):
    """Philox4x32-10 (Salmon et al. 2011)."""
    c, k, mask = list(counter), list(key), 2**32 - 1
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & mask, (a >> 32) ^ c[3] ^ k[1], a & mask]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return c


def permutation(n, seed, epoch):
    """The order of an epoch's images: Fisher and Yates with Lemire's bounded integers."""
    def words():
        for block in range(2**32):
            yield from philox((block, epoch, 0, 2), (seed, 0))
    word, order = words(), list(range(n))
    for last in range(n - 1, 0, -1):
        bound = last + 1
        product = next(word) * bound
        while product % 2**32 < 2**32 % bound:
            product = next(word) * bound
        other = product >> 32
        order[last], order[other] = order[other], order[last]
    return order


def logits(p, images):
    f = torch.nn.functional
    h = f.avg_pool2d(f.relu(f.conv2d(images, p["W1"], p["b1"])), 2)
    h = f.avg_pool2d(f.relu(f.conv2d(h, p["W2"], p["b2"])), 2)
    return f.relu(h.flatten(1) @ p["W3"] + p["b3"]) @ p["W4"] + p["b4"]


class Oracle(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.manual_seed(0)
        images = idx("train-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)
        order = torch.tensor(permutation(len(images), SEED, 0)[:STEPS * BATCH])
        cls.images = images[order]
        cls.labels = idx("train-labels-idx1-ubyte.gz", 8)[order].long()
        cls.holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.holder.cleanup)

    def path(self, name):
        return os.path.join(self.holder.name, name)

    def train(self, *options, data=DATA, seed=SEED):
        return record("train", "--data", data, "--seed", seed, "--batch", BATCH, "--force", *options)["result"]

    def batch(self, step):
        part = slice(step * BATCH, (step + 1) * BATCH)
        return self.images[part].double() / 255, self.labels[part]

    @staticmethod
    def parameters(path):
        tensors = safetensors_file.read(path)[1]
        return {name: torch.frombuffer(bytearray(tensors[name][1]), dtype=torch.float32).reshape(tensors[name][0]).double()
                for name in NAMES}

    def checkpoint_at_start(self, name, draw, *options, seed=SEED):
        """A checkpoint at step 0 with weights as draw(name, shape) gives them, of a run with these options."""
        self.train(*options, "--steps", 1, "--test-images", 1, "--checkpoint", self.path(f"form-{name}"), seed=seed)
        metadata, tensors = safetensors_file.read(self.path(f"form-{name}/step-00000001.safetensors"))
        for tensor in NAMES:
            shape = tensors[tensor][0]
            values = draw(tensor, shape) if tensor.startswith("W") else torch.zeros(shape)
            tensors[tensor] = (shape, array.array("f", values.flatten().tolist()).tobytes())
        path = self.path(f"start-{name}.safetensors")
        safetensors_file.write(path, {**metadata, "step": "0", "epoch_loss": "0x0p+0"}, tensors)
        return path

    def checkpoint_off_the_plateau(self, learning_rate):
        """From such weights training moves at once (He et al. 2015), not after an epoch."""
        fan_in = {"W1": 9, "W2": 500, "W3": 800, "W4": 128}
        generator = torch.Generator().manual_seed(7)
        return self.checkpoint_at_start(learning_rate, lambda name, shape: torch.randn(shape, generator=generator) * math.sqrt(2 / fan_in[name]),
                                        "--lr", learning_rate, "--epochs", 1)

    @staticmethod
    def loss_and_gradient(parameters, batch):
        for tensor in parameters.values():
            tensor.requires_grad_()
        loss = torch.nn.functional.cross_entropy(logits(parameters, batch[0]), batch[1])
        return loss.item(), dict(zip(NAMES, torch.autograd.grad(loss, list(parameters.values()))))

    # A step of so large a rate is the gradient alone but for rounding: the weights it starts from do not count.
    HUGE = 2.0**40

    def compare_gradients(self, start, *options):
        result = self.train("--lr", self.HUGE, "--epochs", 1, "--steps", 1, "--test-images", 1, "--log-steps", "--save",
                            self.path("after.safetensors"), *options)
        before, after = self.parameters(start), self.parameters(self.path("after.safetensors"))
        found = {name: (before[name] - after[name]) / self.HUGE for name in NAMES}
        loss, expected = self.loss_and_gradient(before, self.batch(0))
        self.assertLess(abs(result["step_losses"][0] / loss - 1), 1e-6)
        for name in NAMES:
            difference = ((found[name] - expected[name]).norm() / expected[name].norm()).item()
            print(f"{name}: gradients differ by {difference:.1e} of their norm")
            self.assertLess(difference, 1e-6, name)

    def test_gradients_of_the_first_step(self):
        self.train("--epochs", 0, "--test-images", 1, "--save", self.path("first.safetensors"))
        self.compare_gradients(self.path("first.safetensors"))

    def test_gradients_away_from_the_plateau(self):
        start = self.checkpoint_off_the_plateau(self.HUGE)
        self.compare_gradients(start, "--resume", start)

    def test_losses_and_predictions(self):
        # Small, so that rounding does not grow: at 0.01 the program's own exact and float reductions differ by 7e-3
        # after 200 steps, at 0.002 by 3e-7.
        rate = 0.002
        start = self.checkpoint_off_the_plateau(rate)
        found = self.train("--lr", rate, "--epochs", 1, "--steps", STEPS, "--log-steps", "--resume", start, "--checkpoint",
                           self.path("trained"))["step_losses"]
        parameters, worst = self.parameters(start), 0
        for step in range(STEPS):
            loss, gradient = self.loss_and_gradient(parameters, self.batch(step))
            parameters = {name: (parameters[name] - rate * gradient[name]).detach() for name in NAMES}
            worst = max(worst, abs(found[step] / loss - 1))
        print(f"losses of {STEPS} steps, {found[0]:.3f} to {found[-1]:.3f}, differ by at most {worst:.1e}")
        self.assertLess(worst, 1e-4)
        self.assertLess(found[-1], 1.8, "the net has learned, so that the comparison means something")

        # The test set with PyTorch's predictions for labels: the program must get every one right.
        trained = self.path(f"trained/step-{STEPS:08}.safetensors")
        images = idx("t10k-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)
        with torch.no_grad():
            rows = torch.cat([logits(self.parameters(trained), part.double() / 255) for part in images.split(500)])
        top = rows.topk(2).values
        ties = int((top[:, 0] - top[:, 1] < 1e-5 * top[:, 0].abs()).sum())
        folder = self.path("predicted")
        os.mkdir(folder)
        for name in ("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz", "t10k-images-idx3-ubyte.gz"):
            os.symlink(os.path.join(DATA, name), os.path.join(folder, name))
        with open(os.path.join(folder, "t10k-labels-idx1-ubyte"), "wb") as file:
            file.write(bytes([0, 0, 8, 1]) + len(images).to_bytes(4, "big") + bytes(rows.argmax(1).tolist()))
        result = self.train("--lr", rate, "--epochs", 1, "--steps", STEPS, "--resume", trained, data=folder)
        print(f"{result['test_correct']} of {len(images)} predictions agree, {ties} ties")
        self.assertGreaterEqual(result["test_correct"], len(images) - ties)
        self.assertLess(ties, 20)

    def test_epochs_from_the_chapters_weights(self):
        """When the start's plateau ends depends on the start weights; from those that PyTorch draws for seeds 1 to 5, when PyTorch's does."""
        losses = []
        for seed in range(1, 6):
            generator = torch.Generator().manual_seed(seed)
            draw = lambda name, shape: torch.randn(shape, generator=generator) * 0.01
            start = self.checkpoint_at_start(f"seed-{seed}", draw, "--epochs", 3, seed=seed)
            losses.append(self.train("--epochs", 3, "--test-images", 1, "--resume", start, seed=seed)["epochs"][2]["train_loss"])
        print("train loss of epoch 3:", [round(loss, 4) for loss in losses])
        self.assertGreaterEqual(sum(0.66 <= loss <= 0.78 for loss in losses), 4)


if __name__ == "__main__":
    unittest.main()
