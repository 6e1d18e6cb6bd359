"""FashionMNIST of torchvision and of TensorFlow Datasets, as custom datasets: a length, items and class_names."""

import numpy as np


def of_torchvision():
    """Its datasets have a length and items (image, class index) already; their class names are called `classes`."""
    from torchvision.datasets import FashionMNIST

    splits = {"train": FashionMNIST("data", train=True, download=True), "validation": FashionMNIST("data", train=False)}
    for split in splits.values():
        split.class_names = split.classes
    return splits


class DataSource:
    """A data source of TensorFlow Datasets, whose items are dicts of arrays; it needs no TensorFlow."""

    def __init__(self, builder, split):
        self.class_names = builder.info.features["label"].names
        self.items = builder.as_data_source(split=split)

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        item = self.items[index]
        return np.squeeze(item["image"]), int(item["label"])  # grey images have one channel


def of_tfds():
    """Needs tensorflow-datasets, array-record and importlib_resources; 4.9.10 was tried."""
    import tensorflow_datasets as tfds

    builder = tfds.builder("fashion_mnist", data_dir="data", file_format="array_record")
    builder.download_and_prepare()
    return {"train": DataSource(builder, "train"), "validation": DataSource(builder, "test")}
