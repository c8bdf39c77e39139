//! Callers: the parties that servers are started, counted and kept for.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use super::settings::Sharing;
use super::variables::Variables;
use crate::event_log::{Principal, QuotaKey, Subject};
use crate::protocol::jsonrpc::InitializeParams;

/// Caller of a request: a principal, or all callers without credentials behind one address.
///
/// A principal stays the same caller once the server has accepted its credentials. From then on it
/// counts as another holder of a quota.
#[derive(Clone, Debug)]
pub struct Caller {
    principal: Principal,
    counted_as: QuotaKey,
    /// Subject that the caller's token claims.
    subject: Option<Subject>,
    /// Variables of its processes. They are a part of the principal.
    variables: Variables,
}

impl Caller {
    /// Creates a caller that counts as the holder of a quota. All sessions of a caller count as one
    /// holder, so `counted_as` is never a session.
    pub fn new(principal: Principal, counted_as: QuotaKey) -> Self {
        Self { principal, counted_as, subject: None, variables: Variables::default() }
    }

    /// Returns the caller with the subject that its token claims.
    pub fn claiming(self, subject: Option<Subject>) -> Self {
        Self { subject, ..self }
    }

    /// Returns the caller with the variables of its processes.
    pub fn with_variables(self, variables: Variables) -> Self {
        Self { variables, ..self }
    }

    /// Returns the variables of its processes.
    pub fn variables(&self) -> &Variables {
        &self.variables
    }

    /// Returns true if the processes of two callers have the same variables. The proxy itself has
    /// none.
    pub(crate) fn have_same_variables(one: Option<&Arc<Self>>, other: Option<&Arc<Self>>) -> bool {
        let [one, other] = [one, other].map(|caller| caller.map_or(&[][..], |caller| caller.variables.as_slice()));
        one == other
    }

    /// Returns true if both tokens claim the same subject. This proves nothing.
    pub fn claims_subject_of(&self, other: &Self) -> bool {
        self.subject.is_some() && self.subject == other.subject
    }

    /// Returns the principal.
    pub fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Returns true for callers without credentials.
    pub fn is_anonymous(&self) -> bool {
        self.principal.is_anonymous()
    }

    /// Returns the quota holder that the caller counts as.
    pub(super) fn counted_as(&self) -> &QuotaKey {
        &self.counted_as
    }

    fn identity(&self) -> (&Principal, Option<&QuotaKey>) {
        (&self.principal, self.is_anonymous().then_some(&self.counted_as))
    }
}

impl PartialEq for Caller {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for Caller {}

impl Hash for Caller {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity().hash(state);
    }
}

/// Key of the sessions that share a server: one caller, and equal parameters.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Sharers {
    caller: Arc<Caller>,
    params: InitializeParams,
}

impl Sharing {
    /// Returns the key of the sessions that share a server, or `None` if this caller shares none.
    pub(super) fn sharers(self, caller: Option<&Arc<Caller>>, params: Option<&InitializeParams>) -> Option<Sharers> {
        let (caller, params) = (caller?, params?);
        let is_shared = match self {
            Self::Off => false,
            Self::Known => !caller.is_anonymous(),
            Self::All => true,
        };
        is_shared.then(|| Sharers { caller: caller.clone(), params: params.clone() })
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    #[test]
    fn a_principal_is_one_caller_before_and_after_its_credentials_are_proven() {
        let [one, other] = [1, 2].map(|last| QuotaKey::Peer(IpAddr::V4(Ipv4Addr::new(192, 0, 2, last))));
        let known = Principal::Known([1; 16]);
        assert_eq!(Caller::new(known, one.clone()), Caller::new(known, QuotaKey::Known([1; 16])));
        assert_ne!(Caller::new(known, one.clone()), Caller::new(Principal::Known([2; 16]), one.clone()));
        assert_ne!(Caller::new(Principal::Anonymous, one), Caller::new(Principal::Anonymous, other));
    }
}
