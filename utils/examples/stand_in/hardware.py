"""How long a step of an engine takes: the model of tarn-simulate (docs/SIMULATION.md, "The model";
src/simulate/hardware.h has the formulas and where each number comes from).

tests/python/stand_in_engine_test.py holds both against each other."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


class Gpu(NamedTuple):
    """flops a second, bytes a second of its memory."""

    flops: float
    bandwidth: float


class Preset(NamedTuple):
    """A model: layers, width, the two factors of the formula, bytes of KV a token, bytes of
    weights, those of experts, the share of these that a token uses."""

    layers: float
    width: float
    a: float
    b: float
    kv_bytes: float
    weights: float
    experts: float = 0
    expert_share: float = 0


GPUS = {
    "A800": Gpu(312e12, 2.039e12),
    "H800": Gpu(989e12, 3.35e12),
    "H100": Gpu(989e12, 3.35e12),
    "H200": Gpu(989e12, 4.8e12),
    "910B": Gpu(320e12, 1.6e12),
}
PRESETS = {
    "Llama-3-8B": Preset(32, 4096, 4, 29.9, 131072, 16.06e9),
    "Llama-3-70B": Preset(80, 8192, 4, 22, 327680, 141.1e9),
    "Qwen3-32B": Preset(64, 5120, 6.4, 39.1, 262144, 65.5e9),
    "DeepSeek-V3": Preset(61, 7168, 11.4, 23.6, 70272, 671e9, 653e9, 8.0 / 256),
}


@dataclass(frozen=True)
class Speed:
    """gpus: of the engine. utilization, efficiency: the shares of flops and of bandwidth that are
    reached. chunk: tokens of prompts in one step."""

    gpu: Gpu
    preset: Preset
    gpus: int = 1
    chunk: int = 2048
    utilization: float = 0.5
    efficiency: float = 0.7
    layer_us: float = 20
    step_us: float = 2000

    def flops(self, tokens: float) -> float:
        p = self.preset
        return p.layers * (p.a * tokens * tokens * p.width + p.b * tokens * p.width * p.width)

    def chunk_s(self, tokens: float, before: float) -> float:
        """Computing so many tokens behind those before, without what a step costs besides."""
        flops = self.flops(before + tokens) - self.flops(before)
        return flops / (self.gpu.flops * self.gpus * self.utilization)

    @property
    def _bandwidth(self) -> float:
        return self.gpu.bandwidth * self.gpus * self.efficiency

    def _weights_s(self, tokens: float) -> float:
        """Of experts those are read that any of the tokens chose."""
        p = self.preset
        chosen = 1 - math.pow(1 - p.expert_share, tokens) if p.experts else 0.0
        return (p.weights - p.experts * (1 - chosen)) / self._bandwidth

    def step_s(self, chunks_s: float, tokens: float, batch: float, context: float) -> float:
        """A step: chunks of so many tokens that take chunks_s, beside a batch that decodes, with
        so many tokens of context in all."""
        p = self.preset
        one = p.layers * p.b * p.width * p.width
        one /= self.gpu.flops * self.gpus * self.utilization
        compute = chunks_s + batch * one
        reading = context * p.kv_bytes / self._bandwidth
        fixed = (self.step_us + self.layer_us * p.layers) / 1e6
        return max(compute, self._weights_s(tokens + batch)) + reading + fixed
