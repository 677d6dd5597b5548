//! Callers that connect without TLS to servers that expect mutual TLS, as permissive policies allow. Servers report
//! these callers with their renewals; the reports are kept in memory.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use fairmesh_model::{InstanceId, ServiceName};
use tokio::time::Instant;

use crate::InstanceRef;

/// Time for which a server's report is valid. A server without plaintext callers sends an empty report, which
/// replaces the earlier one at once.
const RETENTION: Duration = Duration::from_secs(300);
/// Maximum number of reported callers of one server.
pub(crate) const MAX_CALLERS: usize = 64;
/// Maximum number of servers with plaintext callers.
const MAX_SERVERS: usize = 10_000;

/// A plaintext caller, as reported by its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaintextCaller {
    /// IP address of the caller.
    pub address: IpAddr,
    /// Number of connections opened since the caller was first listed.
    pub connections: u64,
    /// Time of the caller's last connection, on this process's clock.
    pub last: Instant,
}

/// The last report of each server.
#[derive(Debug, Default)]
pub(crate) struct PlaintextReports {
    reports: BTreeMap<InstanceRef, Report>,
}

#[derive(Debug)]
struct Report {
    arrived: Instant,
    callers: Vec<PlaintextCaller>,
}

impl PlaintextReports {
    /// Replaces the report of a server. Ignores reports of further servers once [`MAX_SERVERS`] have one.
    pub(crate) fn put(&mut self, server: &InstanceRef, callers: &[PlaintextCaller], now: Instant) {
        let report = || Report { arrived: now, callers: callers.to_vec() };
        // Nearly every renewal ends here after one look-up, regardless of the number of reports.
        match self.reports.get_mut(server) {
            None if callers.is_empty() => return,
            Some(known) if !callers.is_empty() => return *known = report(),
            _ => {}
        }
        self.reports.retain(|known, report| known != server && now < report.arrived + RETENTION);
        if !callers.is_empty() && self.reports.len() < MAX_SERVERS {
            self.reports.insert(server.clone(), report());
        }
    }

    /// Returns the current reports of a service's servers.
    pub(crate) fn of(&self, service: &ServiceName, now: Instant) -> Vec<(InstanceId, Vec<PlaintextCaller>)> {
        let current = |(server, report): &(&InstanceRef, &Report)| {
            server.service == *service && now < report.arrived + RETENTION
        };
        let found = self.reports.iter().filter(current);
        found.map(|(server, report)| (server.instance.clone(), report.callers.clone())).collect()
    }

    /// Whether no server has plaintext callers.
    pub(crate) fn is_empty(&self) -> bool {
        self.reports.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plaintext_caller_report_replaces_previous_one_and_expires() {
        let (mut reports, start) = (PlaintextReports::default(), Instant::now());
        let service = ServiceName::new("shop/cart").unwrap();
        let server =
            |name: &str| InstanceRef { service: service.clone(), instance: InstanceId::new(name).unwrap() };
        let caller = PlaintextCaller { address: [127, 0, 0, 1].into(), connections: 3, last: start };
        reports.put(&server("a"), &[caller], start);
        reports.put(&server("b"), &[caller], start + RETENTION / 2);
        assert_eq!(reports.of(&service, start + RETENTION / 2).len(), 2);
        assert_eq!(reports.of(&service, start + RETENTION).len(), 1, "that of a has ended");
        reports.put(&server("b"), &[], start + RETENTION);
        assert!(reports.is_empty(), "b has no such callers any more, and a is forgotten");
    }
}
