//! Guard process: ends the children of a proxy that is gone.
//!
//! Stdin has a line for each change: `+GROUP` and `-GROUP`. The guard answers `+GROUP` on stdout
//! once it knows the group. The proxy alone has the other end of stdin. The system closes it with
//! the proxy, however that ends. Then the guard ends all groups that it knows, and itself.

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
        // An error of stdin means as much as its end.
        let Ok(line) = line else { break };
        match change(&line) {
            Some((true, group)) => {
                groups.insert(group);
                // Without stdout the proxy is gone, which stdin tells next.
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

/// Reads a line: true and the group for one to know, false and the group for one to forget.
pub(super) fn change(line: &str) -> Option<(bool, u32)> {
    let (sign, group) = line.split_at_checked(1)?;
    let group = group.parse().ok()?;
    match sign {
        "+" => Some((true, group)),
        "-" => Some((false, group)),
        _ => None,
    }
}
