//! A session whose arguments are wrong: each request gets the problem as its error.

use tokio::io::AsyncRead;

use super::input::{HostLine, Input};
use super::output::Output;
use crate::protocol::jsonrpc::{RequestId, code, response};

/// Answers each request with `problem` until the end of stdin.
pub(super) async fn answer<R: AsyncRead + Unpin>(problem: &str, input: &mut Input<R>, output: &Output) {
    let text = format!("mcp-resume connect: {problem}");
    let error = |id: &RequestId| response::error(id, code::INVALID_PARAMS, &text).into();
    while let Some(line) = input.next().await {
        match line {
            HostLine::Request(request) => output.respond(error(&request.id)).await,
            HostLine::Batch(ids, _) => {
                for id in &ids {
                    output.respond(error(id)).await;
                }
            }
            HostLine::Invalid(error) => output.respond(error.into()).await,
            HostLine::Notification { .. } | HostLine::Response(_) => {}
        }
    }
}
