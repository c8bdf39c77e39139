"""Clients of the resumption proposals, a file for each, written from the proposals' texts alone.

No SDK speaks any of them. Each client does what its text asks of a client and takes nothing for granted that the text leaves
open, so that a call which completes here would complete with anybody else's reading too.
"""

from harness.dialects.resumable_requests import ResumableRequests
from harness.dialects.resumable_streams import ResumableStreams
from harness.dialects.resume_tokens import ResumeTokens
from harness.dialects.stream_url import StreamUrl
from harness.dialects.wire import Broken, Refused, Violation

__all__ = ["Broken", "Refused", "ResumableRequests", "ResumableStreams", "ResumeTokens", "StreamUrl", "Violation"]
