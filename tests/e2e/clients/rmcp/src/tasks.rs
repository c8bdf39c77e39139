//! Calls of a client that declares tasks: it polls the task behind a handle, answers its questions,
//! and polls again if a poll is lost.

use std::time::Duration;

use rmcp::{
    Peer, RoleClient, ServiceError,
    model::{
        CallToolRequestParams, CallToolResponse, CancelTaskParams, GetTaskParams, InputRequests, InputResponses,
        TaskPayload, UpdateTaskParams,
    },
};
use serde_json::{Value, json};

use crate::{filled, say};

/// Shorter than the interval that the server suggests, for a fast test.
const PAUSE: Duration = Duration::from_millis(200);
/// Polls that may be lost, together, before the call is.
const LOST_MAX: usize = 40;

/// Calls a tool; returns its result, immediate or of its task. `cancels`: cancels the task as soon
/// as there is one.
pub async fn call(peer: Peer<RoleClient>, mut params: CallToolRequestParams, cancels: bool) -> Result<Value, String> {
    let task = loop {
        match peer.call_tool_once(params.clone()).await.map_err(told)? {
            CallToolResponse::Complete(result) => return serde_json::to_value(result).map_err(told),
            CallToolResponse::InputRequired(asked) => {
                params.input_responses = Some(answers(&asked.input_requests.unwrap_or_default()));
                params.request_state = asked.request_state;
            }
            CallToolResponse::Task(created) => break created.task.task_id,
            _ => return Err("a response of an unknown kind".to_owned()),
        }
    };
    say(&json!({"event": "task", "id": task}));
    if cancels {
        peer.cancel_task(CancelTaskParams::new(&task)).await.map_err(told)?;
    }
    settle(&peer, &task).await
}

async fn settle(peer: &Peer<RoleClient>, task: &str) -> Result<Value, String> {
    let mut lost = 0;
    loop {
        let state = match peer.get_task(GetTaskParams::new(task)).await {
            Ok(state) => state.task,
            Err(error) if !matches!(error, ServiceError::McpError(_)) && lost < LOST_MAX => {
                lost += 1;
                say(&json!({"event": "lost", "message": error.to_string()}));
                tokio::time::sleep(PAUSE).await;
                continue;
            }
            Err(error) => return Err(told(error)),
        };
        match state.payload {
            TaskPayload::Working => tokio::time::sleep(PAUSE).await,
            TaskPayload::InputRequired { input_requests } => {
                let params = UpdateTaskParams::new(task, answers(&input_requests));
                peer.update_task(params).await.map_err(told)?;
            }
            TaskPayload::Completed { result } => return Ok(Value::Object(result)),
            TaskPayload::Failed { error } => return Err(Value::Object(error).to_string()),
            TaskPayload::Cancelled => return Err("the task was cancelled".to_owned()),
            _ => return Err("a state of an unknown kind".to_owned()),
        }
    }
}

/// Answers to questions, all of which are forms.
fn answers(questions: &InputRequests) -> InputResponses {
    let answer = |question| {
        say(&json!({"event": "asked", "kind": "elicitation"}));
        let question: Value = serde_json::to_value(question).unwrap_or_default();
        json!({"action": "accept", "content": filled(&question["params"]["requestedSchema"])})
    };
    questions.iter().map(|(key, question)| (key.clone(), answer(question))).collect()
}

fn told(error: impl ToString) -> String {
    error.to_string()
}
