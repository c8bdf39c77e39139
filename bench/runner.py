"""`bench/run` as a module, for whoever needs its processes: a script without a suffix cannot be imported by its name."""

import importlib.machinery
import importlib.util
import pathlib


def load():
    path = pathlib.Path(__file__).with_name("run")
    loader = importlib.machinery.SourceFileLoader("run", str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("run", loader))
    loader.exec_module(module)
    return module


RUN = load()
