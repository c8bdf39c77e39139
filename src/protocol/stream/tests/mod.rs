//! The state machine against a slow, obvious model.
//!
//! `steps` makes random setups and steps, `model` says what they must lead to, `subject` is the real machine with its tail,
//! and `driver` takes both through the same steps and compares everything after each. `mutants` breaks the subject on
//! purpose, once for each promise, and shows that the comparison notices. `cases` replays what was found once.

mod cases;
mod driver;
mod model;
mod mutants;
mod steps;
mod subject;
