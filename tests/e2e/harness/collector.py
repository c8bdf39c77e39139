"""A collector of OpenTelemetry: rotel, which writes each span that it gets."""

import collections
import re
from dataclasses import dataclass, field

from harness.stack import ROOT, Process, eventually, free_port

FIELDS = {"Trace ID": "trace", "Parent ID": "parent", "ID": "id", "Name": "name", "Kind": "kind"}


@dataclass
class Span:
    """A span, and the attributes of the process that has sent it."""

    resource: dict
    trace: str = ""
    parent: str = ""
    id: str = ""
    name: str = ""
    kind: str = ""
    attributes: dict = field(default_factory=dict)


class Collector(Process):
    """A running collector. `url` is for `otel.endpoint`."""

    def __init__(self):
        http, grpc = free_port(), free_port()
        self.url = f"http://127.0.0.1:{http}"
        program = next((ROOT / ".venvs/collector").glob("lib/python*/site-packages/rotel/rotel-agent"))
        places = ["--otlp-http-endpoint", f"127.0.0.1:{http}", "--otlp-grpc-endpoint", f"127.0.0.1:{grpc}"]
        output = ["--exporter", "blackhole", "--debug-log", "traces", "--debug-log-verbosity", "detailed"]

        def ready(line, found):
            if "Starting Rotel" in line:
                found["port"] = http
            return "port" in found

        super().__init__([program, "start", *places, *output], {}, ready)
        # All lines are kept: they are the spans.
        self.lines = collections.deque(self.lines)

    @property
    def spans(self):
        """The spans so far."""
        spans, resource, attributes = [], {}, {}
        for line in list(self.lines):
            if line.startswith("ResourceSpans #"):
                resource = {}
            elif line.startswith("Resource attributes:"):
                attributes = resource
            elif line.startswith("Span #"):
                spans.append(Span(resource))
            elif line.startswith("Attributes:"):
                attributes = spans[-1].attributes
            elif found := re.fullmatch(r" +-> ([\w.]+): \w+\((.*)\)", line):
                attributes[found[1]] = found[2]
            elif (found := re.fullmatch(r" +([A-Z][\w ]+?) +: (.*)", line)) and found[1] in FIELDS and spans:
                setattr(spans[-1], FIELDS[found[1]], found[2])
        # The last one may be incomplete.
        return [span for span in spans if span.id and span.name and span.kind]

    async def named(self, name, count=1):
        """Waits for `count` spans of this name."""
        await eventually(lambda: len([span for span in self.spans if span.name == name]) >= count)
        return [span for span in self.spans if span.name == name]
