//! Senders of reports: whose room a report takes, what a sender may state beside its rows, and what the response tells it.
//!
//! A report that names services as incomplete, or says how many rows are missing, needs no row for it. Such statements
//! are therefore judged here. They are dropped one by one, as rows are: a refusal would lose the rows of a sender whose
//! rights have just changed.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use fairmesh_model::{
    MAX_CALL_PATHS, MAX_COUNT_ROWS, MAX_SERVER_GROUPS, RecordKey, ServiceName,
    access::{Grants, Reach},
};
use fairmesh_signals::{ReportOwner, ReportSource};
use fairmesh_wire::v1;
use prost::Message;
use tonic::Status;

use super::{
    AccessControl, Caller,
    call_needs::Need,
    report_rows::framed,
    request_needs::{decode, one_message},
};

const REPORT: &str = "/fairmesh.v1.Signals/Report";
/// The method in which processes of the previous release report.
const FORMER_REPORT: &str = "/fairmesh.v1.Imbalance/Report";

/// A message that may have statements beside its rows.
trait Statements: Message + Default {
    /// The names of incomplete services, and the number of rates left out.
    fn of_rates(&mut self) -> Option<(&mut Vec<String>, &mut u32)>;

    /// The tenants of which any service may be incomplete, and whether any service of the mesh may be.
    fn of_tenants(&mut self) -> Option<(&mut Vec<String>, &mut bool)> {
        None
    }

    /// The number of rows of counts left out.
    fn of_counts(&mut self) -> Option<&mut u64> {
        None
    }
}

impl Statements for v1::ReportSignalsRequest {
    fn of_rates(&mut self) -> Option<(&mut Vec<String>, &mut u32)> {
        Some((&mut self.incomplete, &mut self.left_out))
    }

    fn of_tenants(&mut self) -> Option<(&mut Vec<String>, &mut bool)> {
        Some((&mut self.incomplete_tenants, &mut self.all_incomplete))
    }

    fn of_counts(&mut self) -> Option<&mut u64> {
        self.counts.as_mut().map(|counts| &mut counts.left_out)
    }
}

impl Statements for v1::ReportUsageRequest {
    fn of_rates(&mut self) -> Option<(&mut Vec<String>, &mut u32)> {
        self.traffic.as_mut().map(|traffic| (&mut traffic.incomplete, &mut traffic.left_out))
    }
}

/// Returns the services that a report in a call's body names as incomplete. Invalid names are skipped.
///
/// # Errors
/// When the message is malformed.
pub fn incomplete_services(path: &str, body: &[u8]) -> Result<BTreeSet<ServiceName>, Status> {
    fn names<M: Statements>(body: &[u8]) -> Result<BTreeSet<ServiceName>, Status> {
        let mut report: M = decode(one_message(body)?)?;
        let names = report.of_rates().map(|(names, _)| std::mem::take(names)).unwrap_or_default();
        Ok(names.into_iter().filter_map(|name| ServiceName::try_from(name).ok()).collect())
    }
    match path {
        REPORT => names::<v1::ReportSignalsRequest>(body),
        FORMER_REPORT => names::<v1::ReportUsageRequest>(body),
        _ => Ok(BTreeSet::new()),
    }
}

/// Returns the body of a call without the incomplete services that its sender may not name. Only a sender that passes on
/// sums may say that all services of tenants are incomplete; a program has room to name its own. Numbers of rows left
/// out are limited to what one report has room for, so that a forged number hides no true one.
///
/// # Errors
/// When the message is malformed.
pub fn limit_statements(
    (path, body): (&str, Bytes),
    sends_sums: bool,
    may_name: impl Fn(&ServiceName) -> bool,
) -> Result<Bytes, Status> {
    fn limited<M: Statements>(
        body: Bytes,
        sends_sums: bool,
        may_name: impl Fn(&ServiceName) -> bool,
    ) -> Result<Bytes, Status> {
        const MOST_RATES: u32 = (MAX_CALL_PATHS + MAX_SERVER_GROUPS) as u32;
        let mut report: M = decode(one_message(&body)?)?;
        let mut is_changed = false;
        if let Some((names, left_out)) = report.of_rates() {
            let named = names.len();
            names.retain(|name| ServiceName::new(name).is_ok_and(|name| may_name(&name)));
            is_changed |= names.len() != named || *left_out > MOST_RATES;
            *left_out = (*left_out).min(MOST_RATES);
        }
        if let Some((tenants, is_all)) = report.of_tenants().filter(|_| !sends_sums) {
            is_changed |= !tenants.is_empty() || *is_all;
            tenants.clear();
            *is_all = false;
        }
        if let Some(left_out) = report.of_counts() {
            is_changed |= *left_out > MAX_COUNT_ROWS as u64;
            *left_out = (*left_out).min(MAX_COUNT_ROWS as u64);
        }
        Ok(if is_changed { framed(&report) } else { body })
    }
    match path {
        REPORT => limited::<v1::ReportSignalsRequest>(body, sends_sums, may_name),
        FORMER_REPORT => limited::<v1::ReportUsageRequest>(body, sends_sums, may_name),
        _ => Ok(body),
    }
}

impl AccessControl {
    /// Returns the source of a sender's reports: the owner of the room that they take, and the tenants for which they are.
    pub fn report_source(&self, sender: &Caller) -> ReportSource {
        let grants = self.grants(sender);
        let (is_limited, name) = (is_limited(&grants), Arc::<str>::from(sender.to_string()));
        let tenants = self.own_tenants(sender, &grants);
        let owner = match &tenants {
            Reach::Tenants(tenants) if is_limited => {
                tenants.iter().map(|tenant| tenant.as_str()).collect::<Vec<_>>().join(",").into()
            }
            _ => Arc::clone(&name),
        };
        ReportSource { sender: name, owner: ReportOwner { name: owner, is_limited }, tenants }
    }

    /// Returns the tenants for whose services a sender makes or serves calls. Tenants that it may only view are none of
    /// them: a role of a viewer would otherwise give it room of its own.
    fn own_tenants(&self, sender: &Caller, grants: &Grants) -> Reach {
        let mut own = self.machine_role(sender).view;
        let registered = grants.registrar.iter().map(|service| service.tenant.clone());
        let registered: BTreeSet<_> = registered.collect();
        if !registered.is_empty() {
            own.extend(Reach::Tenants(registered));
        }
        own
    }

    /// Removes the services that a caller may not see from the names in a response.
    pub fn keep_visible(&self, caller: &Caller, services: &mut Vec<String>) {
        if services.is_empty() {
            return;
        }
        let grants = self.grants(caller);
        services.retain(|name| {
            grants.relays_reports || ServiceName::new(name).is_ok_and(|name| self.may_view(&grants, &name))
        });
    }

    /// Returns the body of an authorized call without the statements that its caller may not make: only existing
    /// services whose calls it may report can be incomplete. Sums ignore services of other tenants among them.
    pub(super) fn keep_permitted_statements(
        &self,
        maker: &Caller,
        (path, body): (&str, Bytes),
    ) -> Result<Bytes, Status> {
        let grants = self.grants(maker);
        if !is_limited(&grants) {
            return Ok(body);
        }
        // Sums regard only tenants of the agent.
        let sends_sums = grants.machine.as_ref().is_some_and(|machine| machine.is_agent);
        limit_statements((path, body), sends_sums, |service| {
            let key = RecordKey::Service(service.clone()).to_string();
            self.shared.node.get(&key).is_some()
                && self.check_one(&grants, maker, &Need::CallFrom(service.clone())).is_ok()
        })
    }
}

/// Whether a caller reports for some tenants only.
fn is_limited(grants: &Grants) -> bool {
    !grants.admin && !grants.relays_reports && !grants.serve.is_everything()
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{
        Identity, JoinedAgent, Record, StoreId,
        access::{AccessRole, RoleBinding, Subject},
    };
    use fairmesh_wire::record_encoding;

    use super::*;
    use crate::{Commit, Node};

    #[test]
    fn report_source_of_agent_stays_the_same_when_it_may_view_more() {
        let node = Node::new(StoreId(1));
        let put = |revision, key: RecordKey, record: Record| {
            let value = record_encoding::encode(&record);
            node.apply(Commit { revision, changes: vec![(key.to_string().into(), Some(value))] });
        };
        let joined = JoinedAgent { tenants: vec!["red".parse().unwrap()], joined: 0, region: None };
        put(1, RecordKey::JoinedAgent("red-1".parse().unwrap()), Record::JoinedAgent(joined));
        let access = AccessControl::new(node.clone());
        access.require(None);
        let id = "spiffe://prod/fairmesh/agent/red-1".parse().unwrap();
        let agent = Caller::from(Identity::Spiffe(id));
        let before = access.report_source(&agent);
        assert!(before.owner.is_limited && *before.owner.name == *"red", "{before:?}");
        let binding = RoleBinding {
            role: AccessRole::Viewer,
            tenants: Vec::new(),
            services: Vec::new(),
            subjects: vec![Subject::parse("fairmesh/agent/red-1").unwrap()],
            workloads: None,
        };
        put(2, RecordKey::RoleBinding("viewers".parse().unwrap()), Record::RoleBinding(binding));
        access.changed();
        assert!(access.grants(&agent).view.is_everything());
        assert_eq!(access.report_source(&agent), before);
    }

    #[test]
    fn report_statements_are_limited_in_both_formats() {
        let incomplete = || vec!["red/a".to_owned(), "blue/b".to_owned(), "odd".to_owned()];
        let counts = v1::CountReport { left_out: u64::MAX, ..Default::default() };
        let report = v1::ReportSignalsRequest {
            sender: Some(v1::SignalSender::default()),
            left_out: u32::MAX,
            incomplete: incomplete(),
            counts: Some(counts),
            incomplete_tenants: vec!["red".to_owned()],
            all_incomplete: true,
            ..Default::default()
        };
        let is_red = |name: &ServiceName| name.tenant.as_str() == "red";
        let limited = |sends_sums| -> v1::ReportSignalsRequest {
            let body = limit_statements((REPORT, framed(&report)), sends_sums, is_red).unwrap();
            decode(one_message(&body).unwrap()).unwrap()
        };
        let (sum, kept) = (limited(true), limited(false));
        assert_eq!((sum.incomplete_tenants.len(), sum.all_incomplete), (1, true));
        assert_eq!((kept.incomplete_tenants.len(), kept.all_incomplete), (0, false), "a program's own calls");
        assert_eq!((kept.incomplete, kept.left_out), (vec!["red/a".to_owned()], 5_120));
        assert_eq!(kept.counts.unwrap().left_out, 4_096);

        let traffic = v1::TrafficReport { left_out: 7, incomplete: incomplete(), ..Default::default() };
        let former = framed(&v1::ReportUsageRequest { traffic: Some(traffic), ..Default::default() });
        let named = incomplete_services(FORMER_REPORT, &former).unwrap();
        assert_eq!(named.len(), 2);
        let body = limit_statements((FORMER_REPORT, former), true, is_red).unwrap();
        let kept: v1::ReportUsageRequest = decode(one_message(&body).unwrap()).unwrap();
        let kept = kept.traffic.unwrap();
        assert_eq!((kept.incomplete, kept.left_out), (vec!["red/a".to_owned()], 7));
    }
}
