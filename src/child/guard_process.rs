//! Guard process: ends the children of a proxy that has ended.
//!
//! Stdin has a line for each change: `+GROUP` and `-GROUP`. The guard writes `+GROUP` to stdout
//! once it knows the group. The proxy alone has the other end of stdin. The system closes it when
//! the proxy ends, for any reason. Then the guard ends all groups that it knows, and itself.

use std::collections::BTreeSet;
use std::io::{self, BufRead, Write};
use std::process::ExitCode;

use super::group::Group;

/// Hidden subcommand that runs the guard.
pub(super) const SUBCOMMAND: &str = "__guard";

/// Runs the guard until stdin ends, and then until all groups have ended.
pub(super) fn run() -> ExitCode {
    let mut groups = BTreeSet::new();
    let mut stdout = io::stdout().lock();
    for line in io::stdin().lock().lines() {
        // An error of stdin counts as its end.
        let Ok(line) = line else { break };
        match change(&line) {
            Some((true, group)) => {
                groups.insert(group);
                // An error means that the proxy has ended. The end of stdin follows.
                let _ = writeln!(stdout, "+{group}").and_then(|()| stdout.flush());
            }
            Some((false, group)) => {
                groups.remove(&group);
            }
            None => {}
        }
    }
    let groups: Vec<Group> = groups.into_iter().filter_map(Group::of).collect();
    Group::end_all(&groups);
    ExitCode::SUCCESS
}

/// Parses a line. Returns true with a group to add, or false with a group to remove.
pub(super) fn change(line: &str) -> Option<(bool, u32)> {
    let (sign, group) = line.split_at_checked(1)?;
    let group = group.parse().ok()?;
    match sign {
        "+" => Some((true, group)),
        "-" => Some((false, group)),
        _ => None,
    }
}
