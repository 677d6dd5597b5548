//! Callers that reach servers in plaintext although these speak mutual TLS, as permissive policies allow: reported with
//! renewals, and kept in memory.

use std::{collections::BTreeMap, net::IpAddr, time::Duration};

use fairmesh_model::{InstanceId, Invalid, ServiceName};
use tokio::time::Instant;

use crate::{InstanceRef, Registry};

/// How long the report of a server counts. A server without callers in plaintext reports none, which ends it at once.
const RETENTION: Duration = Duration::from_secs(300);
/// The callers of one server.
const MAX_CALLERS: usize = 64;
/// The servers with callers in plaintext.
const MAX_SERVERS: usize = 10_000;

/// A caller in plaintext, as its server reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlaintextCaller {
    /// Its address.
    pub address: IpAddr,
    /// Connections that it opened since it is listed.
    pub connections: u64,
    /// When it had one last, on the clock of this process.
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
    /// Replaces the report of a server. One that has no room is left out.
    fn put(&mut self, server: &InstanceRef, callers: &[PlaintextCaller], now: Instant) {
        let report = || Report { arrived: now, callers: callers.to_vec() };
        // Nearly every renewal ends here: one look-up, however many reports there are.
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

    fn of(&self, service: &ServiceName, now: Instant) -> Vec<(InstanceId, Vec<PlaintextCaller>)> {
        let current = |(server, report): &(&InstanceRef, &Report)| {
            server.service == *service && now < report.arrived + RETENTION
        };
        let found = self.reports.iter().filter(current);
        found.map(|(server, report)| (server.instance.clone(), report.callers.clone())).collect()
    }

    fn is_empty(&self) -> bool {
        self.reports.is_empty()
    }
}

impl Registry {
    /// Takes over a report of servers that have renewed their leases.
    ///
    /// # Errors
    /// When there are too many callers.
    pub fn report_plaintext_callers(
        &self,
        servers: &[InstanceRef],
        callers: &[PlaintextCaller],
    ) -> Result<(), Invalid> {
        if callers.len() > MAX_CALLERS {
            let hint = format!("report {MAX_CALLERS}, those with a connection first");
            return Err(Invalid::new("plaintext_callers", "are too many", hint));
        }
        let mut reports = self.plaintext_reports();
        if callers.is_empty() && reports.is_empty() {
            return Ok(());
        }
        servers.iter().for_each(|server| reports.put(server, callers, Instant::now()));
        Ok(())
    }

    /// The callers in plaintext of each server of a service that has any.
    pub fn plaintext_callers(&self, service: &ServiceName) -> Vec<(InstanceId, Vec<PlaintextCaller>)> {
        self.plaintext_reports().of(service, Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_replace_each_other_and_end() {
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
