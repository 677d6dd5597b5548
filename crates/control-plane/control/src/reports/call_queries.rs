//! Reported calls, for operators.

use std::collections::BTreeMap;

use fairmesh_model::{CallPath, CallRates, RecordKey, ServiceName, TrafficReport};
use fairmesh_signals::MAX_WATCHED_SERVICES;
use fairmesh_wire::v1;
use tonic::Status;

use super::TrafficReports;

/// Maximum number of paths in a response, which keeps it far below the maximum size of a message.
const MAX_SHOWN: usize = 4_096;

impl TrafficReports {
    /// The reported calls, optionally only those to a service or those of a caller. A named service is
    /// watched from now on.
    ///
    /// # Errors
    /// The service does not exist, or too many services are watched.
    pub(crate) fn calls(
        &self,
        service: Option<&ServiceName>,
        caller: Option<&ServiceName>,
    ) -> Result<v1::TrafficCallsResponse, Status> {
        let now_ms = self.now_ms();
        let since_ms = service.map(|service| self.look(service, now_ms)).transpose()?.flatten();
        let mut sum = self.sums().sum_of_all(now_ms);
        let (left_out, processes) = (sum.left_out, std::mem::take(&mut sum.processes));
        let (calls, not_shown) = shown(selected(sum, service, caller));
        // The response reuses the encoding of a report with these paths.
        let report =
            v1::ReportSignalsRequest::from(TrafficReport { calls, processes, ..TrafficReport::default() });
        let watched_ms = since_ms.map(|since| now_ms.saturating_sub(since));
        Ok(v1::TrafficCallsResponse { calls: report.calls, not_shown, left_out, watched_ms })
    }

    /// Requests reports of a service's calls. Returns since when they are requested; `None` if they are reported in
    /// any case.
    pub(super) fn look(&self, service: &ServiceName, now_ms: u64) -> Result<Option<u64>, Status> {
        if self.facts.planned().contains(service) {
            return Ok(None);
        }
        if self.node.get(&RecordKey::Service(service.clone()).to_string()).is_none() {
            return Err(Status::not_found(format!(
                "there is no service {service}; list services with 'fairmesh get services'"
            )));
        }
        self.watched().look(service, now_ms).map(Some).map_err(|full| {
            let seconds = full.for_ms.div_ceil(1_000);
            Status::resource_exhausted(format!(
                "{MAX_WATCHED_SERVICES} other services are looked at, and the calls of no more are reported; try again in {seconds} s, or end some \
                 'fairmesh traffic calls --watch'"
            ))
        })
    }
}

/// Sums the requested paths without their zones and parents.
fn selected(
    sum: TrafficReport,
    service: Option<&ServiceName>,
    caller: Option<&ServiceName>,
) -> BTreeMap<CallPath, CallRates> {
    let is_meant = |path: &CallPath| {
        service.is_none_or(|service| *service == path.service)
            && caller.is_none_or(|caller| path.caller.as_ref() == Some(caller))
    };
    let mut calls = BTreeMap::<CallPath, CallRates>::new();
    for (path, rates) in sum.calls.into_iter().filter(|(path, _)| is_meant(path)) {
        *calls.entry(CallPath { from_zone: None, to_zone: None, parent: None, ..path }).or_default() += rates;
    }
    calls
}

/// The paths with the most calls, and the number of paths left out.
fn shown(calls: BTreeMap<CallPath, CallRates>) -> (BTreeMap<CallPath, CallRates>, u32) {
    let beyond = calls.len().saturating_sub(MAX_SHOWN);
    if beyond == 0 {
        return (calls, 0);
    }
    let mut calls: Vec<_> = calls.into_iter().collect();
    calls.sort_by_key(|(_, rates)| std::cmp::Reverse(rates.offered.max(rates.attempts)));
    (calls.into_iter().take(MAX_SHOWN).collect(), u32::try_from(beyond).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use fairmesh_model::{Region, Zone};

    use super::*;

    fn path(number: usize, zone: &str) -> CallPath {
        CallPath {
            service: ServiceName::new(format!("shop/s{number}")).unwrap(),
            from: Region::new("eu").unwrap(),
            to: Some(Region::new("eu").unwrap()),
            class: None,
            caller: Some(ServiceName::new(format!("shop/c{}", number % 2)).unwrap()),
            from_zone: Some(Zone::new(zone).unwrap()),
            to_zone: None,
            parent: None,
        }
    }

    fn rates(offered: u64) -> CallRates {
        CallRates { offered, ..CallRates::default() }
    }

    #[test]
    fn call_paths_are_selected_summed_and_limited_to_most_called() {
        let many = (0..MAX_SHOWN + 5).map(|number| (path(number, "a"), rates(number as u64)));
        let calls = many.chain([(path(7, "b"), rates(100))]).collect();
        let sum = TrafficReport { calls, ..TrafficReport::default() };
        let (service, caller, other) =
            (path(7, "a").service, path(1, "a").caller.unwrap(), path(2, "a").caller);
        let of = |service, caller| selected(sum.clone(), service, caller);
        assert_eq!(of(Some(&service), None).into_values().collect::<Vec<_>>(), [rates(107)]);
        assert!(of(Some(&service), other.as_ref()).is_empty());
        assert_eq!(of(None, Some(&caller)).len(), (MAX_SHOWN + 5) / 2);
        let (most, beyond) = shown(of(None, None));
        assert_eq!((most.len(), beyond), (MAX_SHOWN, 5));
        assert!(!most.values().any(|rates| rates.offered < 5), "those with the fewest are left out");
    }
}
