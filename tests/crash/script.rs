//! Behaviour of the tool in a call. All of it follows from one number in the call's arguments.

use std::time::Duration;

use serde_json::{Value, json};

use crate::rng::Rng;

/// A call as the upstream will answer it.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) seed: u64,
    /// The upstream takes so long to say anything.
    pub(crate) before: Duration,
    pub(crate) steps: Vec<Step>,
}

/// One event before the response.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    pub(crate) after: Duration,
    pub(crate) what: What,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    Progress {
        number: usize,
        padding: usize,
    },
    /// A server request; the tool continues after the client response.
    Question,
}

impl Script {
    pub(crate) fn new(seed: u64) -> Script {
        let mut rng = Rng::new(seed);
        let before = match rng.below(20) {
            // The proxy has begun the response by then.
            0 => Duration::from_millis(700),
            1..=5 => rng.millis(50),
            _ => Duration::ZERO,
        };
        let count = match rng.below(10) {
            0 => rng.below(200),
            1..=3 => rng.below(40),
            _ => rng.below(15),
        };
        let in_bursts = rng.percent(40);
        let question = rng.percent(15).then(|| rng.below(count + 1));
        let mut steps = Vec::new();
        for number in 0..=count {
            if question == Some(number) {
                steps.push(Step { after: rng.millis(20), what: What::Question });
            }
            if number == count {
                break;
            }
            let after = match rng.below(20) {
                _ if count > 40 || (in_bursts && number % 8 != 0) => Duration::ZERO,
                0 => rng.millis(400),
                1..=9 => rng.millis(60),
                _ => rng.millis(15),
            };
            let padding = match rng.below(40) {
                0 => 50_000 + rng.below(250_000),
                1..=5 => rng.below(8000),
                _ => rng.below(100),
            };
            steps.push(Step { after, what: What::Progress { number, padding } });
        }
        Script { seed, before, steps }
    }

    /// The data of one event.
    pub(crate) fn data(&self, step: &Step) -> String {
        match step.what {
            What::Progress { number, padding } => {
                json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": {
                "progressToken": self.seed, "progress": number, "message": self.padding(padding)}})
                .to_string()
            }
            What::Question => json!({"jsonrpc": "2.0", "id": self.question(), "method": "roots/list"}).to_string(),
        }
    }

    /// The data of the response.
    pub(crate) fn result(&self, id: &Value) -> String {
        let text = format!("done {}", self.seed);
        json!({"jsonrpc": "2.0", "id": id, "result": {"content": [{"type": "text", "text": text}]}}).to_string()
    }

    /// The id of its question.
    pub(crate) fn question(&self) -> String {
        format!("q-{}", self.seed)
    }

    fn padding(&self, length: usize) -> String {
        let letters = Rng::new(self.seed).next().to_string();
        letters.chars().cycle().take(length).collect()
    }
}
