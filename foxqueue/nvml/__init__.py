"""NVIDIA's management library through nvidia-ml-py.

Answers are normalised here: text instead of bytes, MiB instead of bytes, None for what NVML does not tell.
"""

from foxqueue.nvml.binding import Fault, NvmlCaller, NvmlFault, binding_version, load_binding
from foxqueue.nvml.facts import GpuFacts, Inventory, MigFacts, Versions, inventory, pci_order, versions
from foxqueue.nvml.samples import AllReader, GpuProcess, GpuReader, Sample

__all__ = [
    "AllReader",
    "Fault",
    "GpuFacts",
    "GpuProcess",
    "GpuReader",
    "Inventory",
    "MigFacts",
    "NvmlCaller",
    "NvmlFault",
    "Sample",
    "Versions",
    "binding_version",
    "inventory",
    "load_binding",
    "pci_order",
    "versions",
]
