"""
Train a small Keras network on 1,797 real handwritten digits with MultiWorkerMirroredStrategy: what digits.py
is for DDP, for clusters where TensorFlow is to run. No download, seconds on a CPU.

    python train/tensorflow_digits.py                         one process, all its GPUs
    kit run train/tensorflow_digits.yaml                      two "nodes" on this machine
    kit submit train/tensorflow_digits.yaml --image tf.sif -- --epochs 40
    kit submit train/tensorflow_digits.yaml --image tf.sif --max-restarts 3 -- --checkpoint saved

Two workers by hand, the second with "index": 1 in a shell of its own; each waits for the other:

    TF_CONFIG='{"cluster": {"worker": ["127.0.0.1:61000", "127.0.0.1:61001"]},
                "task": {"type": "worker", "index": 0}}' python train/tensorflow_digits.py

The number of workers decides who computes what, never what is computed: the losses printed are the same,
to rounding, for any number that divides the batch size.

Needs tensorflow 2.16 or later, tf_keras of the same minor version, numpy and scikit-learn. tf_keras is Keras 2:
Keras 3, which TensorFlow brings as tf.keras, cannot fit a model over several workers
(https://github.com/keras-team/keras/issues/20585).

Array shapes: N images, D = 64 pixels.
"""

import argparse
import importlib.util
import json
import os
import socket
import sys
import time
from pathlib import Path

import numpy as np

os.environ.setdefault(
    "TF_CPP_MIN_LOG_LEVEL", "2"
)  # else a dozen lines about this CPU; read when tensorflow is imported

TEST_IMAGES = 360  # a fifth of the 1,797


def parse_args():
    parser = argparse.ArgumentParser(
        description="MultiWorkerMirroredStrategy on scikit-learn's handwritten digits"
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument(
        "--batch-size", type=int, default=192, help="global: over all workers together"
    )
    parser.add_argument("--lr", type=float, default=0.003, help="learning rate of Adam")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--checkpoint",
        metavar="FOLDER",
        help="save after each epoch, and go on from there when started again",
    )
    return parser.parse_args()


def find_worker():
    """Returns (worker, workers), after saying who this process is by TF_CONFIG; without it this is a world of one."""
    config = json.loads(os.environ.get("TF_CONFIG", "{}"))
    cluster, task = config.get("cluster", {}), config.get("task", {"type": "worker", "index": 0})
    # A job called chief is optional; where there is one, its only task is the first worker.
    chiefs, workers = cluster.get("chief", []), cluster.get("worker", [])
    worker = task["index"] + (len(chiefs) if task["type"] == "worker" else 0)
    addresses = chiefs + workers
    count = max(1, len(addresses))
    # Before tensorflow is imported and waits for the others: when that hangs, these lines show who is missing.
    print(
        f"worker {worker}/{count}  host {socket.gethostname()}  task {task['index']}  cluster [{', '.join(addresses)}]",
        flush=True,
    )
    return worker, count


def load():
    """Returns train and test images_ND in 0..1 and labels_N: the same split in every worker and run."""
    # What load_digits() reads, without importing sklearn: that takes 1.5 s of CPU in every process.
    sklearn = importlib.util.find_spec("sklearn")
    if sklearn is None:
        fix = f"{sys.executable} -m pip install scikit-learn"
        sys.exit(
            f"tensorflow_digits.py: the digits come with scikit-learn, which this Python lacks\n  fix: {fix}"
        )
    file = Path(sklearn.submodule_search_locations[0], "datasets", "data", "digits.csv.gz")
    rows = np.loadtxt(file, delimiter=",", dtype=np.float32)  # 64 pixels, label
    images_ND, labels_N = rows[:, :64] / 16, rows[:, 64].astype(np.int64)
    # Shuffled: the file is ordered by writer, and its last fifth is written by people not in the rest.
    order = np.random.default_rng(0).permutation(len(labels_N))
    test, train = order[:TEST_IMAGES], order[TEST_IMAGES:]
    return (images_ND[train], labels_N[train]), (images_ND[test], labels_N[test])


def batches(tf, images_ND, labels_N, batch_size, shuffle_seed=None):
    """Returns the dataset of global batches, of which every worker reads its share."""
    dataset = tf.data.Dataset.from_tensor_slices((images_ND, labels_N))
    if shuffle_seed is not None:
        # Seeded alike in every worker: the shares are disjoint only if the order is the same. And whole batches
        # only: Keras averages over the workers, which is the mean over the images if their shares are equal.
        dataset = dataset.shuffle(len(labels_N), seed=shuffle_seed).batch(
            batch_size, drop_remainder=True
        )
    else:
        dataset = dataset.batch(batch_size)
    options = tf.data.Options()
    # By image. The default is by file, finds none, warns, and falls back to this.
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.with_options(options)


def main():
    args = parse_args()
    worker, workers = find_worker()
    if importlib.util.find_spec("tf_keras") is None:
        fix = f"{sys.executable} -m pip install tensorflow tf_keras"
        sys.exit(
            f"tensorflow_digits.py: this Python lacks tf_keras, Keras 2 for several workers\n  fix: {fix}"
        )
    import tensorflow as tf
    import tf_keras as keras

    # Too small a network to share between cores; and sums in one order, so every run gives the same.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    strategy = (
        tf.distribute.MultiWorkerMirroredStrategy()
    )  # waits for all workers that TF_CONFIG names
    replicas = strategy.num_replicas_in_sync  # one for each GPU of a worker, else one
    if args.batch_size % replicas:
        sys.exit(
            f"tensorflow_digits.py: --batch-size {args.batch_size} does not divide among {replicas} replicas\n  fix: give a multiple of {replicas}"
        )
    chief = worker == 0
    if chief:
        print(
            f"tensorflow {tf.__version__}  keras {keras.__version__}  workers {workers}  replicas {replicas}",
            flush=True,
        )

    train, test = load()
    keras.utils.set_random_seed(args.seed)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Input((64,)),
                keras.layers.Dense(256, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.Adam(args.lr), loss=loss, metrics=["accuracy"])

    def say(epoch, logs):
        if chief:
            print(f"epoch {epoch + 1}/{args.epochs}  loss {logs['loss']:.4f}", flush=True)

    start = time.time()
    callbacks = [keras.callbacks.LambdaCallback(on_epoch_end=say)]
    if args.checkpoint:  # every worker needs it; it is gone when the training is over
        callbacks.append(keras.callbacks.BackupAndRestore(args.checkpoint))
    model.fit(
        batches(tf, *train, args.batch_size, args.seed),
        epochs=args.epochs,
        verbose=0,
        callbacks=callbacks,
    )
    # Every worker takes part, each with its share of the test images.
    accuracy = model.evaluate(batches(tf, *test, args.batch_size), verbose=0, return_dict=True)[
        "accuracy"
    ]
    if chief:
        print(f"trained in {time.time() - start:.1f} s", flush=True)
        print(f"test accuracy {accuracy:.3f}", flush=True)


if __name__ == "__main__":
    main()
