"""Clients of the resumption proposals, a file for each, written from the proposals' texts alone.

No SDK implements any of them. Each client follows its text strictly and relies on nothing that the text leaves open, so that a
call that completes here would also complete with other implementations.
"""

from harness.dialects.resumable_requests import ResumableRequests
from harness.dialects.resumable_streams import ResumableStreams
from harness.dialects.resume_tokens import ResumeTokens
from harness.dialects.stream_url import StreamUrl
from harness.dialects.wire import Broken, Refused, Violation

__all__ = ["Broken", "Refused", "ResumableRequests", "ResumableStreams", "ResumeTokens", "StreamUrl", "Violation"]
