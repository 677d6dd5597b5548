//! Responses of a replica by tenant, and whether a successor gives more errors.

use std::collections::BTreeMap;

/// Minimum number of errors of a tenant for them to count as evidence.
const MIN_ERRORS: u64 = 5;
/// Minimum rise of a tenant's error share for it to count, in hundredths.
const MIN_RISE: u64 = 5;
/// Minimum number of responses before the upgrade from which it is expected that the successor must respond, too.
const MIN_RESPONSES: u64 = 20;
/// Divisor: a successor with fewer responses than its predecessor's number divided by this counts as not serving.
const MIN_PART: u64 = 10;
/// Metrics of connections that a replica refuses regardless of the tenant. Not included: connections beyond a tenant's
/// quota, because one tenant must not decide about upgrades; and refused handshakes and peers that left, because all nodes
/// reconnect at once: more handshakes are refused for a moment, and nodes leave those that take long.
const REFUSED: [&str; 3] = [
    "fairmesh_gateway_peers_refused_total ",
    "fairmesh_gateway_tenants_refused_total ",
    "fairmesh_gateway_connections_refused_total ",
];
/// Name of the metric of responses.
const RESPONSES: &str = "fairmesh_gateway_responses_total{";
/// Start time of the process, which distinguishes two processes at the same address.
const STARTED: &str = "process_start_time_seconds ";

/// Number of responses, and of server or gateway errors among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Responses {
    pub(super) all: u64,
    pub(super) errors: u64,
}

impl Responses {
    /// Returns the sum of both counts.
    pub(super) const fn with(self, more: Self) -> Self {
        Self { all: self.all + more.all, errors: self.errors + more.errors }
    }
}

/// Parsed metrics of a replica.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Counts {
    /// Start time of the process, as text.
    pub(super) started: String,
    pub(super) by_tenant: BTreeMap<String, Responses>,
    /// Number of refused connections.
    pub(super) refused: u64,
}

/// Counts of one replica while it was watched.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Served {
    pub(super) responses: Responses,
    pub(super) refused: u64,
}

impl Served {
    pub(super) fn of(by_tenant: &BTreeMap<String, Responses>, refused: u64) -> Self {
        Self { responses: by_tenant.values().copied().fold(Responses::default(), Responses::with), refused }
    }

    /// Explains why a successor with these counts does not do the work of this replica; `None` if it does. Error
    /// codes would not show this, because a refused caller gets no response.
    pub(super) fn idle(&self, successor: &Self) -> Option<String> {
        let (then, now) = (self.responses.all, successor.responses.all);
        if then >= MIN_RESPONSES && now < then / MIN_PART {
            return Some(format!("its successor gave {now} responses, and it gave {then} before"));
        }
        let (then, now) = (self.refused, successor.refused);
        let rose = now >= MIN_ERRORS && now > then.saturating_mul(2);
        rose.then(|| format!("its successor refused {now} connections, and it refused {then} before"))
    }
}

impl Counts {
    /// Parses a metrics page.
    pub(super) fn parse(page: &str) -> Self {
        let mut counts = Self::default();
        for line in page.lines() {
            if let Some(started) = line.strip_prefix(STARTED) {
                counts.started = started.trim().to_owned();
            }
            if let Some(refused) = REFUSED.iter().find_map(|name| line.strip_prefix(name)) {
                counts.refused += refused.trim().parse::<u64>().unwrap_or(0);
            }
            let Some((labels, value)) = line.strip_prefix(RESPONSES).and_then(|rest| rest.split_once("} "))
            else {
                continue;
            };
            let (Some(tenant), Ok(value)) = (label(labels, "tenant"), value.trim().parse::<u64>()) else {
                continue;
            };
            let responses = counts.by_tenant.entry(tenant.to_owned()).or_default();
            responses.all += value;
            responses.errors += if label(labels, "class") == Some("5xx") { value } else { 0 };
        }
        counts
    }

    /// Responses since an earlier page of the same process.
    pub(super) fn since(&self, earlier: &Self) -> BTreeMap<String, Responses> {
        let of = |(tenant, now): (&String, &Responses)| {
            let before = earlier.by_tenant.get(tenant).copied().unwrap_or_default();
            let all = now.all.saturating_sub(before.all);
            (tenant.clone(), Responses { all, errors: now.errors.saturating_sub(before.errors) })
        };
        self.by_tenant.iter().map(of).collect()
    }
}

/// Value of a label. Names of tenants and classes contain no escaped characters.
fn label<'a>(labels: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = labels.split_once(&format!("{name}=\""))?;
    rest.split_once('"').map(|(value, _)| value)
}

/// Adds the counts of another replica to `sum`.
pub(super) fn add(sum: &mut BTreeMap<String, Responses>, more: BTreeMap<String, Responses>) {
    for (tenant, more) in more {
        let own = sum.entry(tenant).or_default();
        *own = own.with(more);
    }
}

/// The tenants because of which an upgrade stops: those whose share of errors rose. A single one of several tenants may
/// fail by itself and must not keep a provider from upgrading. So two are needed, or the only tenant with more than
/// occasional calls.
pub(super) fn worse<'a>(
    before: &BTreeMap<String, Responses>,
    after: &'a BTreeMap<String, Responses>,
) -> Option<Vec<&'a str>> {
    let called = after.values().filter(|responses| responses.all >= MIN_ERRORS).count();
    let rose = after.iter().filter(|(tenant, now)| {
        let then = before.get(*tenant).copied().unwrap_or_default();
        now.errors >= MIN_ERRORS && share(**now) >= share(then) + MIN_RISE
    });
    let rose: Vec<&str> = rose.map(|(tenant, _)| tenant.as_str()).collect();
    (rose.len() >= 2 || (rose.len() == 1 && called == 1)).then_some(rose)
}

/// Share of errors, in hundredths.
fn share(responses: Responses) -> u64 {
    responses.errors * 100 / responses.all.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rows: &[(&str, u64, u64)]) -> BTreeMap<String, Responses> {
        rows.iter()
            .map(|(tenant, all, errors)| ((*tenant).to_owned(), Responses { all: *all, errors: *errors }))
            .collect()
    }

    #[test]
    fn gateway_response_metrics_are_summed_by_tenant() {
        let page = "# TYPE fairmesh_gateway_responses counter\n\
            fairmesh_gateway_responses_total{tenant=\"red\",service=\"red/web\",region=\"eu\",class=\"2xx\"} 7\n\
            fairmesh_gateway_responses_total{tenant=\"red\",service=\"red/api\",region=\"(none)\",class=\"5xx\"} 2\n\
            fairmesh_gateway_faults_total{tenant=\"red\",service=\"red/api\"} 2\n\
            fairmesh_gateway_peers_refused_total 3\n\
            fairmesh_gateway_peers_left_total 90\n\
            fairmesh_gateway_connections_refused_total 4\n\
            fairmesh_gateway_handshakes_refused_total 9\n\
            process_start_time_seconds 1700000000.25\n";
        let counts = Counts::parse(page);
        assert_eq!((counts.started.as_str(), &counts.by_tenant), ("1700000000.25", &of(&[("red", 9, 2)])));
        assert_eq!(counts.refused, 7);
        let later = Counts { by_tenant: of(&[("red", 12, 3), ("blue", 1, 0)]), ..counts.clone() };
        assert_eq!(later.since(&counts), of(&[("red", 3, 1), ("blue", 1, 0)]));
    }

    #[test]
    fn upgrade_stops_if_errors_rise_for_two_tenants_or_only_tenant() {
        let before = of(&[("red", 100, 1), ("blue", 100, 40), ("green", 100, 0)]);
        let stops = |after: &[(&str, u64, u64)]| worse(&before, &of(after)).map(|tenants| tenants.join(" "));
        assert_eq!(stops(&[("red", 100, 3), ("blue", 100, 42), ("green", 100, 0)]), None, "as before");
        assert_eq!(stops(&[("red", 100, 100), ("blue", 100, 40), ("green", 100, 0)]), None, "one of three");
        assert_eq!(stops(&[("red", 100, 9), ("blue", 100, 50)]), Some("blue red".into()));
        assert_eq!(stops(&[("red", 10, 5), ("blue", 0, 0)]), Some("red".into()));
        assert_eq!(stops(&[("red", 4, 4)]), None, "too few");
        assert_eq!(stops(&[("red", 100, 100), ("blue", 4, 4)]), Some("red".into()), "blue hardly calls");
    }

    #[test]
    fn upgrade_stops_if_new_gateway_replica_sends_no_responses() {
        let served = |all, refused| Served::of(&of(&[("red", all, 0)]), refused);
        let stops = |then: Served, now: Served| then.idle(&now).is_some();
        assert!(stops(served(20, 0), Served::default()), "no response");
        assert!(stops(served(1000, 0), served(99, 0)) && !stops(served(1000, 0), served(100, 0)));
        assert!(!stops(served(19, 0), Served::default()), "too few before");
        assert!(stops(served(0, 0), served(0, 5)), "all peers are refused");
        assert!(!stops(served(100, 0), served(100, 4)) && !stops(served(100, 50), served(100, 100)));
    }
}
