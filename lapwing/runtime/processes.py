"""Processes that are quick to start."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext, SpawnContext


def fresh_processes(module: str) -> ForkServerContext | SpawnContext:
    """Where to start processes that need a module: forks of a server that has imported it and done nothing else.

    A fork of a process with threads may hang, and a new interpreter spends seconds on importing torch. Where the system
    has no such server, processes are new interpreters.
    """
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", module])
    return context
