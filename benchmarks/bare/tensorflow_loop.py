"""The TensorFlow loops, by hand and by Keras `fit`: one device, MirroredStrategy, MultiWorkerMirroredStrategy.

python -m benchmarks.bare.tensorflow_loop --mode mirrored --variant fit
TF_CONFIG=... python -m benchmarks.bare.tensorflow_loop --mode multiworker --threads 1
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import keras
import tensorflow as tf

from benchmarks.bare.measure import NUM_CLASSES, arguments, batches, measured, report
from dpcompare.backends.tensorflow.model import build_model
from dpcompare.config.workload import Workload


def main() -> None:
    chosen = arguments(["single", "mirrored", "multiworker"], ["loop", "fit"])
    tf.config.experimental.enable_tensor_float_32_execution(chosen.profile == "native")
    replicas = 2 if chosen.mode == "mirrored" else 1
    tf.config.threading.set_inter_op_parallelism_threads(2)
    tf.config.threading.set_intra_op_parallelism_threads(max(1, chosen.threads // replicas))
    if chosen.mode == "mirrored":
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        strategy = tf.distribute.MirroredStrategy(["/device:CPU:0", "/device:CPU:1"])
    elif chosen.mode == "multiworker":
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    else:
        strategy = tf.distribute.get_strategy()
    workers = len(json.loads(os.environ.get("TF_CONFIG", '{"cluster": {"worker": [""]}}'))["cluster"]["worker"])
    with strategy.scope():
        model = build(chosen.model, chosen.image_size)
        optimizer = keras.optimizers.Adam()
        optimizer.build(model.trainable_variables)
    per_replica = chosen.global_batch_size // strategy.num_replicas_in_sync
    data = batches(per_replica * replicas, chosen.image_size)
    speed = (fitted if chosen.variant == "fit" else looped)(model, optimizer, strategy, data, chosen)
    if workers == 1 or strategy.cluster_resolver.task_id == 0:
        report(speed)
    if workers > 1:
        strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.constant(1.0)))
    os._exit(0)  # the normal shutdown of a worker may take a minute


def looped(model: Any, optimizer: Any, strategy: Any, data: Any, chosen: Any) -> float:
    """A tf.function of one step, called in a loop."""
    loss_of_rows = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    rows = chosen.global_batch_size // strategy.num_replicas_in_sync

    def of_replica(context: Any, number: int) -> Any:
        images, labels = data[number]
        first = context.replica_id_in_sync_group * rows % len(images)
        return tf.constant(images[first : first + rows]), tf.constant(labels[first : first + rows])

    placed = [
        strategy.experimental_distribute_values_from_function(lambda context, n=number: of_replica(context, n))
        for number in range(len(data))
    ]

    def replica_step(batch: Any) -> Any:
        images, labels = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(loss_of_rows(labels, model(images, training=True))) / chosen.global_batch_size
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function(autograph=False, jit_compile=False)
    def train(batch: Any) -> Any:
        return strategy.run(replica_step, (batch,))

    return measured(lambda number: train(placed[number % len(placed)]), chosen)


def fitted(model: Any, optimizer: Any, strategy: Any, data: Any, chosen: Any) -> float:
    """Keras's `fit`, with the clock in a callback."""
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=optimizer, loss=loss, jit_compile=False)
    times = []

    class Clock(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            times.append(time.perf_counter())

    dataset = tf.data.Dataset.from_generator(
        lambda: iter(data),
        output_signature=(
            tf.TensorSpec(data[0][0].shape, tf.float32),
            tf.TensorSpec(data[0][1].shape, tf.int32),
        ),
    )
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    dataset = dataset.cache().repeat().prefetch(2).with_options(options)
    model.fit(dataset, steps_per_epoch=chosen.steps, epochs=1, verbose=0, callbacks=[Clock()])
    images = (chosen.steps - chosen.warmup_steps) * chosen.global_batch_size
    return images / (times[-1] - times[chosen.warmup_steps - 1])


def build(name: str, image_size: int) -> Any:
    """The model as Keras has it, or dpcompare's: Keras's ResNet-50 is another version, and it has no ViT."""
    if not name.startswith("efficientnet"):
        return build_model(Workload(model=name, image_size=image_size), NUM_CLASSES)
    architecture = getattr(keras.applications, f"EfficientNet{name[-2:].upper()}")
    return architecture(
        weights=None, input_shape=(image_size, image_size, 3), classes=NUM_CLASSES, classifier_activation=None
    )


if __name__ == "__main__":
    main()
