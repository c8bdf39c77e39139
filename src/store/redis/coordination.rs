//! Coordination of replicas through Redis: leases, messages, groups.

use std::sync::Arc;
use std::time::Duration;

use ::redis::{Cmd, Value};
use bytes::Bytes;
use tokio::sync::watch;

use super::core::Core;
use super::failure::unexpected_reply;
use super::keys::{self, Order, order};
use super::pubsub::MAIL;
use super::scripts::{self, Script};
use super::{Redis, command, last, millis};
use crate::{Coordination, Error, Pending, Renewal, StoreHealth};
use mcp_resume_base::sync;
use mcp_resume_protocol::ids::{Owner, StoreEpoch};

/// Maximum messages that are taken at once.
const MESSAGES_MAX: usize = 256;

impl Redis {
    /// Returns a call of a script with the first `keys` keys of the leases.
    fn lease(&self, script: &Script, keys: usize) -> Cmd {
        let mut cmd = script.call();
        for key in self.core.names.leases().into_iter().take(keys) {
            cmd.arg(key);
        }
        cmd
    }

    fn lease_call<T: Send + 'static>(
        &self,
        cmd: Cmd,
        read: impl FnOnce(Value) -> Result<T, Error> + Send + 'static,
    ) -> Pending<Result<T, Error>> {
        self.core.call(order("leases"), vec![cmd], move |answers| read(last(answers)))
    }

    /// Returns the query for the running leases, or for the expired ones.
    fn leases(&self, running: bool) -> Cmd {
        let mut cmd = self.lease(&scripts::LEASES, 1);
        cmd.arg(u8::from(running));
        cmd
    }
}

impl Coordination for Redis {
    fn owner(&self) -> Owner {
        self.core.owner
    }

    fn epoch(&self) -> StoreEpoch {
        self.core.epoch()
    }

    fn possible_losses(&self) -> watch::Receiver<u64> {
        self.core.possible_losses.subscribe()
    }

    fn renew(&self, lease: Duration) -> Pending<Result<Renewal, Error>> {
        let mut cmd = self.lease(&scripts::RENEW, 2);
        cmd.arg(keys::of(self.core.owner)).arg(&self.core.incarnation).arg(millis(lease));
        self.lease_call(cmd, |answer| match answer {
            Value::BulkString(word) if word == b"held" => Ok(Renewal::Extended),
            Value::BulkString(word) if word == b"anew" => Ok(Renewal::Acquired),
            Value::BulkString(word) if word == b"taken" => Ok(Renewal::HeldByAnother),
            _ => Err(unexpected_reply()),
        })
    }

    fn release(&self) -> Pending<Result<(), Error>> {
        let mut cmd = self.lease(&scripts::GIVE_UP, 2);
        cmd.arg(keys::of(self.core.owner)).arg(&self.core.incarnation);
        self.lease_call(cmd, |_| Ok(()))
    }

    fn grant_grace(&self, owners: &[Owner], lease: Duration) -> Pending<Result<(), Error>> {
        let mut cmd = self.lease(&scripts::EXPECT, 1);
        cmd.arg(millis(lease));
        for owner in owners {
            cmd.arg(keys::of(*owner));
        }
        self.lease_call(cmd, |_| Ok(()))
    }

    fn live_replicas(&self) -> Pending<Result<Vec<Owner>, Error>> {
        // After a loss any lease may be missing, even if this replica has renewed its own.
        let may_be_lost = |_: &Vec<Owner>| true;
        self.core.query(order("leases"), self.leases(true), |answers| owners(last(answers)), may_be_lost)
    }

    fn expired_leases(&self) -> Pending<Result<Vec<Owner>, Error>> {
        self.lease_call(self.leases(false), owners)
    }

    fn forget(&self, owner: Owner) -> Pending<Result<(), Error>> {
        let mut cmd = self.lease(&scripts::DISMISS, 3);
        cmd.arg(keys::of(owner));
        self.lease_call(cmd, |_| Ok(()))
    }

    fn send(&self, to: Owner, message: &[u8], keep: Duration) -> Pending<Result<(), Error>> {
        let names = &self.core.names;
        let mut cmd = scripts::SEND.call();
        for key in names.mail(to) {
            cmd.arg(key);
        }
        // By its number, a message that is sent twice is stored once. Numbers are queued in their
        // order, because a lower one behind a higher one counts as sent.
        let mut sent = sync::lock(&self.core.sent);
        *sent += 1;
        cmd.arg(names.channel(to)).arg(MAIL).arg(&self.core.incarnation).arg(*sent).arg(millis(keep)).arg(message);
        self.core.call(order(("mail", to.0)), vec![cmd], |_| Ok(()))
    }

    fn receive(&self) -> Pending<Result<Vec<Bytes>, Error>> {
        let core = self.core.clone();
        Pending::Later(Box::pin(async move {
            loop {
                let notified = core.mail.notified();
                match take_messages(&core).wait().await {
                    Ok(messages) if !messages.is_empty() => return Ok(messages),
                    Ok(_) => {}
                    // The next connection notifies, because there may be messages then.
                    Err(Error::Unavailable(_)) if core.health() == StoreHealth::Unreachable => {}
                    Err(error) => return Err(error),
                }
                notified.await;
            }
        }))
    }

    fn join(&self, group: &[u8], keep: Duration) -> Pending<Result<(), Error>> {
        let (core, group) = (self.core.clone(), self.core.names.group(group));
        let asked = dismissals(&core, &[core.owner]);
        Pending::Later(Box::pin(async move {
            let times = asked.wait().await?;
            let mut cmd = scripts::JOIN.call();
            cmd.arg(&group).arg(keys::of(core.owner)).arg(times.first().cloned().unwrap_or_default()).arg(millis(keep));
            core.call(order(&group), vec![cmd], |_| Ok(())).wait().await
        }))
    }

    fn members(&self, group: &[u8]) -> Pending<Result<Vec<Owner>, Error>> {
        let (core, group) = (self.core.clone(), self.core.names.group(group));
        let mut cmd = scripts::MEMBERS.call();
        cmd.arg(&group);
        let asked = core.query(order(&group), cmd, |answers| texts(last(answers)), |found| found.is_empty());
        Pending::Later(Box::pin(async move {
            let noted = asked.wait().await?;
            let noted: Vec<_> =
                noted.chunks_exact(2).filter_map(|pair| Some((keys::owner(&pair[0])?, pair[1].clone()))).collect();
            if noted.is_empty() {
                return Ok(Vec::new());
            }
            let owners: Vec<_> = noted.iter().map(|(owner, _)| *owner).collect();
            let times = dismissals(&core, &owners).wait().await?;
            let there = noted.into_iter().zip(times).filter(|((_, then), now)| then == now);
            Ok(there.map(|((owner, _), _)| owner).collect())
        }))
    }
}

/// Takes the waiting messages. They stay in Redis until they are acknowledged, so that none is lost
/// with a reply.
fn take_messages(core: &Arc<Core>) -> Pending<Result<Vec<Bytes>, Error>> {
    let mut cmd = acknowledging(core, &scripts::RECEIVE);
    cmd.arg(MESSAGES_MAX);
    let of = core.clone();
    core.call(mail_order(core), vec![cmd], move |answers| {
        let Value::Array(parts) = last(answers) else { return Err(unexpected_reply()) };
        let Ok([Value::BulkString(first), Value::BulkString(count), messages]) = <[Value; 3]>::try_from(parts) else {
            return Err(unexpected_reply());
        };
        let messages: Vec<_> = texts(messages)?.into_iter().map(Bytes::from).collect();
        if !messages.is_empty() {
            *sync::lock(&of.taken) = (first, count);
            // Not awaited: the next call acknowledges them too.
            let _ = of.call(mail_order(&of), vec![acknowledging(&of, &scripts::TAKEN)], |_| Ok(()));
        }
        Ok(messages)
    })
}

/// Returns a call of a script on this replica's messages that acknowledges those taken last.
fn acknowledging(core: &Core, script: &Script) -> Cmd {
    let [mail, _] = core.names.mail(core.owner);
    let (first, count) = sync::lock(&core.taken).clone();
    let mut cmd = script.call();
    cmd.arg(mail).arg(first).arg(count);
    cmd
}

fn mail_order(core: &Core) -> Order {
    order(("mail", core.owner.0))
}

/// Returns the number of times that each owner was forgotten; empty for never.
fn dismissals(core: &Core, owners: &[Owner]) -> Pending<Result<Vec<Vec<u8>>, Error>> {
    let [_, _, dismissals] = core.names.leases();
    let mut cmd = command::cmd(&[b"HMGET", dismissals.as_bytes()]);
    for owner in owners {
        cmd.arg(keys::of(*owner));
    }
    core.call(order("leases"), vec![cmd], |answers| texts(last(answers)))
}

fn owners(answer: Value) -> Result<Vec<Owner>, Error> {
    Ok(texts(answer)?.iter().filter_map(|text| keys::owner(text)).collect())
}

/// Decodes a list of texts; a missing one is empty.
fn texts(answer: Value) -> Result<Vec<Vec<u8>>, Error> {
    let Value::Array(values) = answer else { return Err(unexpected_reply()) };
    Ok(values.into_iter().map(|value| if let Value::BulkString(text) = value { text } else { Vec::new() }).collect())
}
