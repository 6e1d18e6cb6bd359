"""The parts of Kubernetes's schemas that our manifests use; unknown fields are refused, as kubectl does if strict.

Fields, types and limits of TrainJob are those of pkg/apis/trainer/v1alpha1/trainjob_types.go of kubeflow/trainer at
0015772c, from which its CRD is generated; those of Job, ConfigMap and pods are the Kubernetes API's (batch/v1, v1).
"""

# ruff: noqa: N815 (the names are those of Kubernetes)
from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


Name = Annotated[str, Field(min_length=1, max_length=253)]


class Metadata(Strict):
    name: Annotated[str, Field(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", max_length=63)]


class FieldRef(Strict):
    fieldPath: str


class ValueFrom(Strict):
    fieldRef: FieldRef


class EnvVar(Strict):
    name: str
    value: str | None = None
    valueFrom: ValueFrom | None = None


class Resources(Strict):
    limits: dict[str, str]


class Claim(Strict):
    claimName: str


class ConfigMapSource(Strict):
    name: str


class EmptyDir(Strict):
    medium: Literal["", "Memory"] = ""
    sizeLimit: str | None = None


class Volume(Strict):
    name: str
    emptyDir: EmptyDir | None = None
    persistentVolumeClaim: Claim | None = None
    configMap: ConfigMapSource | None = None


class VolumeMount(Strict):
    name: str
    mountPath: str


class RuntimeRef(Strict):
    name: Name
    apiGroup: Name | None = None
    kind: Name | None = None


class Trainer(Strict):
    image: Annotated[str, Field(max_length=500)] | None = None
    command: Annotated[list[str], Field(max_length=128)] | None = None
    args: Annotated[list[str], Field(max_length=128)] | None = None
    env: Annotated[list[EnvVar], Field(max_length=128)] | None = None
    numNodes: int | None = None
    resourcesPerNode: Resources | None = None
    numProcPerNode: int | None = None


class ContainerPatch(Strict):
    name: Name
    env: list[EnvVar] | None = None
    volumeMounts: list[VolumeMount] | None = None


class PodSpecPatch(Strict):
    volumes: list[Volume] | None = None
    containers: list[ContainerPatch] | None = None


class PodTemplatePatch(Strict):
    spec: PodSpecPatch | None = None


class JobSpecPatch(Strict):
    template: PodTemplatePatch | None = None


class JobTemplatePatch(Strict):
    spec: JobSpecPatch | None = None


class ReplicatedJobPatch(Strict):
    name: Name
    template: JobTemplatePatch | None = None


class JobSetSpecPatch(Strict):
    replicatedJobs: list[ReplicatedJobPatch] | None = None


class JobSetTemplatePatch(Strict):
    spec: JobSetSpecPatch | None = None


class TrainingRuntimeSpecPatch(Strict):
    template: JobSetTemplatePatch | None = None


class RuntimePatch(Strict):
    manager: Name
    trainingRuntimeSpec: TrainingRuntimeSpecPatch | None = None


class TrainJobSpec(Strict):
    runtimeRef: RuntimeRef
    trainer: Trainer | None = None
    runtimePatches: Annotated[list[RuntimePatch], Field(max_length=16)] | None = None


class TrainJob(Strict):
    apiVersion: Literal["trainer.kubeflow.org/v1alpha1"]
    kind: Literal["TrainJob"]
    metadata: Metadata
    spec: TrainJobSpec


class Container(Strict):
    name: str
    image: str
    command: list[str]
    env: list[EnvVar]
    resources: Resources
    volumeMounts: list[VolumeMount]


class PodSpec(Strict):
    restartPolicy: Literal["Never", "OnFailure"]
    containers: list[Container]
    volumes: list[Volume]


class PodTemplate(Strict):
    spec: PodSpec


class JobSpec(Strict):
    completionMode: Literal["Indexed", "NonIndexed"]
    completions: int
    parallelism: int
    backoffLimit: int
    template: PodTemplate


class Job(Strict):
    apiVersion: Literal["batch/v1"]
    kind: Literal["Job"]
    metadata: Metadata
    spec: JobSpec


class ConfigMap(Strict):
    apiVersion: Literal["v1"]
    kind: Literal["ConfigMap"]
    metadata: Metadata
    data: dict[str, str]


class Manifests(Strict):
    apiVersion: Literal["v1"]
    kind: Literal["List"]
    items: list[Annotated[TrainJob | Job | ConfigMap, Field(discriminator="kind")]]
