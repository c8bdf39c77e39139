//! Comparisons of request ids, counted, so that a test can distinguish linear from quadratic work.

use std::cell::Cell;

use super::RequestId;

thread_local! {
    static COMPARISONS: Cell<usize> = const { Cell::new(0) };
}

impl PartialEq for RequestId {
    fn eq(&self, other: &Self) -> bool {
        COMPARISONS.set(COMPARISONS.get() + 1);
        match (self, other) {
            (Self::Number(one), Self::Number(other)) | (Self::String(one), Self::String(other)) => one == other,
            (Self::Number(_), Self::String(_)) | (Self::String(_), Self::Number(_)) => false,
        }
    }
}

/// Returns the number of comparisons that `work` makes.
pub(crate) fn comparisons(work: impl FnOnce()) -> usize {
    let before = COMPARISONS.get();
    work();
    COMPARISONS.get() - before
}
