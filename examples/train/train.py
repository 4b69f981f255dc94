"""Learns to read handwritten digits, from nothing, as the program in C does, with the same numbers: train.py [DATA [EPOCHS [SEED]]]

Needs the package `onnxc`.
"""

import pathlib
import sys

import numpy as np
import onnxc

HERE = pathlib.Path(__file__).resolve().parent
RECORD, BATCH, RATE = 33, 32, np.float32(3e-3)


def read_images(path):
    records = np.frombuffer(pathlib.Path(path).read_bytes(), np.uint8)
    records = records[: len(records) // RECORD * RECORD].reshape(-1, RECORD)
    if len(records) < 8:
        sys.exit(f"too few images in {path}")
    levels = np.stack([records[:, 1:] & 15, records[:, 1:] >> 4], axis=2)
    return levels.reshape(-1, 1, 8, 8).astype(np.float32) / np.float32(15), records[:, 0].astype(np.int64)


def numbers(seed):
    """Numbers in no order, the same on every machine."""
    while True:
        seed = (seed * 6364136223846793005 + 1442695040888963407) % 2**64
        yield seed >> 33 & 0xFFFFFFFF


def main():
    path, epochs, seed = sys.argv[1:] + [str(HERE / "digits.bin"), "12", "1"][len(sys.argv) - 1 :]
    images, labels = read_images(path)
    epochs, seed, trained = int(epochs), int(seed), len(images) * 3 // 4
    # For every processor of the architecture, as the program in C: the numbers are the same.
    model = onnxc.compile_and_load(HERE / "digits.onnx", training=True, cpu=None)
    initialize, step = model.entries["train_initialize"], model.entries["train_step"]
    state = model.state()

    def accuracy(state):
        probabilities = model(images[trained:], state=state)[0]
        return 100 * np.mean(np.argmax(probabilities, axis=1) == labels[trained:])

    print(f"{trained} images to train on, {len(images) - trained} to test with; a state of {len(state.bytes)} bytes")
    initialize(state=state, seed=seed)
    print(f"before: accuracy {accuracy(state):.1f}%")
    random, order = numbers(seed), list(range(trained))
    for epoch in range(1, epochs + 1):
        print(f"epoch {epoch:2} of {epochs}  [", end="", flush=True)
        for at in range(trained - 1, 0, -1):
            other = next(random) % (at + 1)
            order[at], order[other] = order[other], order[at]
        total, last = 0.0, trained // BATCH
        for number in range(last):
            batch = order[number * BATCH : (number + 1) * BATCH]
            _, loss = step(images[batch], labels[batch], RATE, state=state)
            total += float(loss)
            if 20 * (number + 1) // last > 20 * number // last:
                print("#", end="", flush=True)
        print(f"]  loss {total / last:.4f}  accuracy {accuracy(state):.1f}%")

    saved = pathlib.Path("digits.state")
    saved.write_bytes(state.bytes)
    other = model.state()
    other.bytes[:] = np.frombuffer(saved.read_bytes(), np.uint8)
    print(f"saved and restored: accuracy {accuracy(other):.1f}%")
    for row in images[trained, 0]:
        print(" ".join(" .:-=+*#%@"[int(pixel * 9)] for pixel in row))
    probabilities = model(images[trained : trained + 1], state=other)[0][0]
    found = int(np.argmax(probabilities))
    print(f"this is a {found} ({100 * probabilities[found]:.1f}%); it is labelled {labels[trained]}")
    sys.exit(int(found != labels[trained]))


if __name__ == "__main__":
    main()
