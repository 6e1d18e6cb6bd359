"""Keras's own `fit`, which makes a step whenever the loop asks for one, and what it is given."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import keras
import numpy as np
from keras.src.trainers.data_adapters.data_adapter import DataAdapter

from dpcompare.backends.description import Description, switched
from dpcompare.backends.keras.build import load_model, mapped_slots
from dpcompare.backends.keras.model import MappedVariable, mapped_variables
from dpcompare.backends.keras.settings import Scope
from dpcompare.config.optimizers import ADAM_BETAS, ADAM_EPSILON
from dpcompare.models.state import TrainingState, is_statistic
from dpcompare.system.type_names import FrameworkArray

LOSS_SUM = "loss_sum"
"""What `fit` logs of a step: the sum of the losses of its rows."""


def adam(model: keras.Model) -> keras.optimizers.Adam:
    """The optimizer of a model: the formula of our own Adam, in Keras's operations."""
    made = keras.optimizers.Adam(beta_1=ADAM_BETAS[0], beta_2=ADAM_BETAS[1], epsilon=ADAM_EPSILON)
    made.build(model.trainable_variables)
    return made


def slots_of(optimizer: keras.optimizers.Adam) -> dict[str, list[keras.Variable]]:
    """What it remembers of each parameter, by our names."""
    return {"exp_avg": optimizer._momentums, "exp_avg_sq": optimizer._velocities}


def switches(model: keras.Model, *, jit_compile: bool) -> tuple[str, ...]:
    """What was switched in a model since it was compiled with `jit_compile`, in words."""
    found = bool(model.jit_compile)
    return switched(
        {
            f"jit_compile of Keras's step {'on' if found else 'off'}": found != jit_compile,
            "eager steps of Keras on": bool(model.run_eagerly),
        }
    )


class StepsMade:
    """The steps that this process has made: an optimizer of Keras itself counts from the state that was loaded last."""

    def __init__(self, optimizer: keras.optimizers.Optimizer) -> None:
        self._optimizer = optimizer
        self._before, self._loaded = 0, 0

    @property
    def since_the_beginning(self) -> int:
        """The steps of the training, those before the state that was loaded included."""
        return int(self._optimizer.iterations.numpy())

    @property
    def count(self) -> int:
        return self._before + self.since_the_beginning - self._loaded

    def load(self, step: int) -> None:
        """Continue from a state after so many steps."""
        self._before, self._loaded = self.count, step
        self._optimizer.iterations.assign(step)


class Fit:
    """`fit` runs in a separate thread; each step the loop gives it a batch, lets it continue, and waits for it."""

    def __init__(
        self,
        model: keras.Model,
        data: CurrentBatch,
        scope: Scope = nullcontext,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        """Args:
        model: compiled.
        data: that it trains on.
        scope: of the thread.
        before: called when `fit` has set its metrics to 0, before the first step.
        """
        self._model, self._data, self._scope = model, data, scope
        self._turns = _StepHandshake(before, model=model, add_history=True)
        self._thread: threading.Thread | None = None

    def step(self, batch: tuple[Any, Any, Any]) -> Mapping[str, Any]:
        """Make a step on images, labels and weights of rows; returns what Keras logs, and raises what it raised."""
        self._data.batch = batch
        if self._thread is None:
            self._thread = threading.Thread(target=self._fit, name="fit", daemon=True)
            self._thread.start()
        else:
            self._turns.proceed()
        return self._turns.wait()

    def _fit(self) -> None:
        try:
            with self._scope():
                self._model.fit(self._data, epochs=1, verbose=0, callbacks=self._turns)
            # Nothing waits for it if fit was asked to end.
            self._turns.fail(
                RuntimeError(
                    "Keras ended its fit, and the loop has more steps to make; expected that no layer sets "
                    "model.stop_training"
                )
            )
        except Exception as error:  # raised where the step is waited for
            self._turns.fail(error)

    def end(self) -> None:
        """Have `fit` return, if it has begun."""
        if self._thread is not None:
            self._turns.end()
            self._thread.join()


class CurrentBatch(DataAdapter):
    """What `fit` trains on: the batch of the present step, which is on its devices already.

    Of what `fit` takes as its data only such an adapter is left as it is. Everything else becomes batches on the host,
    which Keras splits and copies within the step that is timed.
    """

    batch: tuple[Any, Any, Any] | None = None
    """Images, with their drop masks if there are any; labels; weights."""

    def __iter__(self) -> Iterator[Any]:
        # Keras takes the first batch twice: once to look at its shapes.
        while True:
            yield self.batch

    def get_jax_iterator(self) -> Iterator[Any]:
        return iter(self)

    def get_torch_dataloader(self) -> CurrentBatch:
        return self

    @property
    def num_batches(self) -> None:
        """Unknown to Keras: `fit` continues until it is asked to stop."""


class _StepHandshake(keras.callbacks.CallbackList):
    """The loop and `fit` in turns: while one works, the other waits. A list, since Keras makes numbers of what a step
    logs, for which it waits for the device, before it gives them to one callback.

    `fit` waits here, after a step, and not for data inside the next one: that step's function would read variables,
    such as the learning rate, before its batch comes, and its collectives would deadlock with those of the loop.
    """

    def __init__(self, before: Callable[[], None], **options: Any) -> None:
        super().__init__(**options)
        self._before = before
        self._done: queue.SimpleQueue[Mapping[str, Any] | Exception] = queue.SimpleQueue()
        self._more: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        super().on_epoch_begin(epoch, logs)
        self._before()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._done.put(logs or {})
        self.model.stop_training = not self._more.get()

    def wait(self) -> Mapping[str, Any]:
        """Until `fit` has made a step, of which it returns the logs; raises what `fit` raised."""
        ended = self._done.get()
        if isinstance(ended, Exception):
            raise ended
        return ended

    def fail(self, error: Exception) -> None:
        self._done.put(error)

    def proceed(self) -> None:
        self._more.put(True)

    def end(self) -> None:
        self._more.put(False)


RowLosses = Callable[..., FrameworkArray]
"""(logits, labels, training=...) -> the loss of each row."""


class FittedModel:
    """A model that `fit` trains in torch or JAX: compiled, with what the loop wants to know of a step."""

    def __init__(self, model: keras.Model, row_losses: RowLosses, *, jit_compile: bool) -> None:
        """Compile a model of `build`.

        Args:
            model: whose variables are trained.
            row_losses: of the backend; their sum, each with its weight, is minimised.
            jit_compile: as Keras decides by itself: JAX compiles a step, torch does not.
        """
        self.model = model
        self._jit_compile = jit_compile
        self.adam = adam(model)
        self.steps = StepsMade(self.adam)
        self._slots = mapped_slots(model, slots_of(self.adam))
        self._sums = _SumsOfStep(row_losses)
        model.compile(
            optimizer=self.adam,
            loss=_WeightedLoss(row_losses),
            weighted_metrics=[self._sums],
            jit_compile=jit_compile,
        )

    @property
    def images_computed(self) -> int:
        """The images whose losses `fit` has computed."""
        return int(self._sums.images.numpy())

    def described(self, description: Description) -> Description:
        """The description of a process, with what is Keras's in it."""
        switched_by_keras = switches(self.model, jit_compile=self._jit_compile)
        return replace(description, switches=(*description.switches, *switched_by_keras)).with_settings(
            loop="Keras fit", optimizer_kernels="Keras"
        )

    def trained(self) -> Iterator[tuple[str, MappedVariable, keras.Variable]]:
        """Each parameter, and what the optimizer remembers of it, by its name in a TrainingState."""
        for mapped in mapped_variables(self.model):
            if not is_statistic(mapped.name):
                yield mapped.name, mapped, mapped.variable
        for name, (mapped, slot) in self._slots.items():
            yield name, mapped, slot

    def state(self) -> TrainingState:
        """The training so far, on the host."""
        return TrainingState(
            model={mapped.name: mapped.on_host(mapped.variable) for mapped in mapped_variables(self.model)},
            optimizer={name: mapped.on_host(slot) for name, (mapped, slot) in self._slots.items()},
            step=self.steps.since_the_beginning,
        )

    def load(self, state: TrainingState, name: str) -> None:
        """Continue from a state of a model called `name`."""
        load_model(self.model, state.model, name)
        for slot_name, (mapped, slot) in self._slots.items():
            value = state.optimizer[slot_name] if state.step else np.zeros_like(mapped.on_host(slot))
            slot.assign(mapped.layout.from_neutral(value))
        self.steps.load(state.step)


class _WeightedLoss(keras.losses.Loss):
    """The sum of the losses of all rows, each times its weight."""

    def __init__(self, row_losses: RowLosses) -> None:
        super().__init__()
        self._row_losses = row_losses

    def __call__(self, labels: Any, logits: Any, sample_weight: Any = None) -> FrameworkArray:
        return keras.ops.sum(_losses(self._row_losses, labels, logits) * keras.ops.reshape(sample_weight, (-1,)))


class _SumsOfStep(keras.metrics.Metric):
    """What the loop wants to know: of a step the sum of its rows' losses, and how many images there were up to now."""

    def __init__(self, row_losses: RowLosses) -> None:
        super().__init__(name=LOSS_SUM, dtype=keras.config.floatx())
        self._row_losses = row_losses
        self.total = self.add_variable((), "zeros", name="total")
        self.images = self.add_variable((), "zeros", dtype="int32", name="images")

    def update_state(self, labels: Any, logits: Any, sample_weight: Any = None) -> None:
        counted = keras.ops.cast(keras.ops.reshape(sample_weight, (-1,)) > 0, self.dtype)
        self.total.assign(keras.ops.sum(_losses(self._row_losses, labels, logits) * counted))
        self.images.assign(self.images + keras.ops.cast(keras.ops.sum(counted), "int32"))

    def result(self) -> FrameworkArray:
        # Not the variable's own value, which the next step replaces, in torch within the same tensor.
        return self.total + 0


def _losses(row_losses: RowLosses, labels: FrameworkArray, logits: FrameworkArray) -> FrameworkArray:
    """The loss of each row; labels may come with an axis that Keras has added."""
    return row_losses(keras.ops.cast(logits, keras.config.floatx()), keras.ops.reshape(labels, (-1,)), training=True)
