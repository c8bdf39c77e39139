//! Tests of the state machine against a slow, obvious model.
//!
//! `steps` makes random setups and steps, `model` predicts their results, and `subject` is the real
//! machine with its tail. `driver` takes both through the same steps and compares everything after
//! each. `mutants` plants a bug for each promise in the subject, and shows that the comparison
//! notices it. `cases` replays failures that were found once. The model has no pings and no tasks:
//! `pings` and `tasks` test them alone.

mod cases;
mod driver;
mod model;
mod mutants;
mod pings;
mod steps;
mod subject;
mod tasks;
