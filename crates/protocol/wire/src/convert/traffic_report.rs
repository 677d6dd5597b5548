//! Reports of calls and servers: `ReportSignalsRequest` of `signals.proto`. The messages of the previous release are in
//! `previous_release`.

pub mod call_counts;
mod previous_release;
mod served_calls;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use fairmesh_model::{
    CallPath, CallRates, Invalid, LoadSignal, MAX_CALL_PATHS, MAX_CALLING_PROCESSES, MAX_INCOMPLETE_SERVICES,
    MAX_INCOMPLETE_TENANTS, MAX_RATE, MAX_REPORTED_REGIONS, MAX_SERVED_PATHS, MAX_SERVER_GROUPS, MetricSum,
    Region, ServerRates, ServiceName, Tenant, TrafficReport, UTILISATION_LEVELS,
};

use crate::v1;

/// Maximum length of the name of a calling process. Longer names are not reported.
pub const MAX_PROCESS_NAME: usize = 128;

impl From<TrafficReport> for v1::ReportSignalsRequest {
    fn from(report: TrafficReport) -> Self {
        let sender = v1::SignalSender {
            reporter: report.reporter,
            interval_ms: u32::try_from(report.interval.as_millis()).unwrap_or(u32::MAX),
            regions: report.regions.into_iter().map(String::from).collect(),
        };
        let processes = report.processes;
        let calls = report.calls.into_iter().map(|(path, rates)| {
            let key = path.caller.is_none().then(|| (path.service.clone(), path.from.clone()));
            let processes = key.and_then(|key| processes.get(&key)).cloned().unwrap_or_default();
            v1::CallRates { processes: processes.into_iter().collect(), ..write_calls(path, rates) }
        });
        let servers = report.servers.into_iter().map(|(group, rates)| write_servers(group, rates));
        let served = report.served.into_iter().map(|(path, rates)| served_calls::write(path, rates));
        Self {
            sender: Some(sender),
            usages: Vec::new(),
            calls: calls.collect(),
            servers: servers.collect(),
            left_out: report.left_out,
            incomplete: report.incomplete.into_iter().map(String::from).collect(),
            served: served.collect(),
            counts: None,
            incomplete_tenants: report.incomplete_tenants.into_iter().map(String::from).collect(),
            all_incomplete: report.all_incomplete,
        }
    }
}

impl v1::ReportSignalsRequest {
    /// Takes the rates out of the message, leaving minutes and counts. Returns `None` for a report without a sender.
    ///
    /// # Errors
    /// With the path of the field, if the rates are invalid, exceed the limits of a report, or have no sender.
    pub fn take_rates(&mut self) -> Result<Option<TrafficReport>, Invalid> {
        let (usages, counts) = (std::mem::take(&mut self.usages), self.counts.take());
        let mut rates = std::mem::replace(self, Self { usages, counts, ..Self::default() });
        match rates.sender.take() {
            Some(sender) => read_rates(sender, rates).map(Some),
            None if rates == Self::default() => Ok(None),
            None => Err(Invalid::new("sender", "is missing", "send it with rates")),
        }
    }
}

/// Reads the rates of a report from its sender.
fn read_rates(sender: v1::SignalSender, rates: v1::ReportSignalsRequest) -> Result<TrafficReport, Invalid> {
    bounded("regions", sender.regions.len(), MAX_REPORTED_REGIONS)?;
    bounded("calls", rates.calls.len(), MAX_CALL_PATHS)?;
    bounded("servers", rates.servers.len(), MAX_SERVER_GROUPS)?;
    bounded("served", rates.served.len(), MAX_SERVED_PATHS)?;
    bounded("incomplete", rates.incomplete.len(), MAX_INCOMPLETE_SERVICES)?;
    bounded("incomplete_tenants", rates.incomplete_tenants.len(), MAX_INCOMPLETE_TENANTS)?;
    let regions = sender.regions.into_iter().map(Region::try_from);
    let incomplete = rates.incomplete.into_iter().map(ServiceName::try_from);
    let incomplete = incomplete.collect::<Result<BTreeSet<_>, Invalid>>();
    let incomplete = incomplete.map_err(|e| e.within("incomplete"))?;
    let tenants = rates.incomplete_tenants.into_iter().map(Tenant::try_from);
    let tenants = tenants.collect::<Result<BTreeSet<_>, Invalid>>();
    let mut report = TrafficReport {
        reporter: sender.reporter,
        interval: Duration::from_millis(sender.interval_ms.into()),
        regions: regions.collect::<Result<_, Invalid>>().map_err(|e| e.within("regions"))?,
        left_out: rates.left_out,
        incomplete_tenants: tenants.map_err(|e| e.within("incomplete_tenants"))?,
        // The previous release sends a full list of services instead.
        all_incomplete: rates.all_incomplete || incomplete.len() >= MAX_INCOMPLETE_SERVICES,
        incomplete,
        ..TrafficReport::default()
    };
    for (i, mut calls) in rates.calls.into_iter().enumerate() {
        let within = |e: Invalid| e.within(format!("calls[{i}]"));
        let names = std::mem::take(&mut calls.processes);
        let (path, rates) = read_calls(calls).map_err(within)?;
        read_processes(&mut report, &path, names).map_err(within)?;
        *report.calls.entry(path).or_default() += rates;
    }
    for (i, servers) in rates.servers.into_iter().enumerate() {
        let (group, rates) = read_servers(servers).map_err(|e| e.within(format!("servers[{i}]")))?;
        *report.servers.entry(group).or_default() += &rates;
    }
    for (i, served) in rates.served.into_iter().enumerate() {
        let (path, rates) = served_calls::read(served).map_err(|e| e.within(format!("served[{i}]")))?;
        *report.served.entry(path).or_default() += rates;
    }
    Ok(report)
}

fn bounded(field: &str, count: usize, most: usize) -> Result<(), Invalid> {
    match count <= most {
        true => Ok(()),
        false => Err(Invalid::new(field, format!("has {count} entries"), format!("send at most {most}"))),
    }
}

fn write_calls(path: CallPath, rates: CallRates) -> v1::CallRates {
    let CallPath { service, from, to, class, caller, from_zone, to_zone, parent } = path;
    let CallRates { offered, attempts, answered, shed, time_us, bytes, request_bytes, .. } = rates;
    let age_ms = write_age(rates.age());
    let (parent_service, parent_class) = parent.map(served_calls::write_node).unwrap_or_default();
    v1::CallRates {
        service: service.to_string(),
        from: from.into(),
        to: to.map(String::from).unwrap_or_default(),
        class: class.map(String::from).unwrap_or_default(),
        caller: caller.map(|caller| caller.to_string()).unwrap_or_default(),
        offered,
        attempts,
        answered,
        shed,
        time_us,
        bytes,
        from_zone: from_zone.map(String::from).unwrap_or_default(),
        to_zone: to_zone.map(String::from).unwrap_or_default(),
        age_ms,
        parent_service,
        parent_class,
        request_bytes,
        processes: Vec::new(),
    }
}

/// Encodes an age in milliseconds. Ages are at most a few minutes.
fn write_age(age: Duration) -> u32 {
    u32::try_from(age.as_millis()).unwrap_or(u32::MAX)
}

fn read_age(ms: u32) -> Duration {
    Duration::from_millis(ms.into())
}

fn read_calls(message: v1::CallRates) -> Result<(CallPath, CallRates), Invalid> {
    let rates = [message.offered, message.attempts, message.answered, message.shed];
    plausible("rates", rates.into_iter().max().unwrap_or_default(), MAX_RATE)?;
    let path = CallPath {
        service: ServiceName::new(&message.service).map_err(|e| e.within("service"))?,
        from: Region::try_from(message.from).map_err(|e| e.within("from"))?,
        to: optional("to", message.to)?,
        class: optional("class", message.class)?,
        caller: optional("caller", message.caller)?,
        from_zone: optional("from_zone", message.from_zone)?,
        to_zone: optional("to_zone", message.to_zone)?,
        parent: match message.parent_service.as_str() {
            "" => None,
            service => {
                Some(served_calls::read_node(service, message.parent_class).map_err(|e| e.within("parent"))?)
            }
        },
    };
    let mut rates = CallRates {
        offered: message.offered,
        attempts: message.attempts,
        answered: message.answered,
        shed: message.shed,
        time_us: message.time_us,
        bytes: message.bytes,
        request_bytes: message.request_bytes,
        ..CallRates::default()
    };
    rates.grow_older(read_age(message.age_ms));
    Ok((path, rates))
}

/// Reads the processes that make calls on a path without a calling service.
fn read_processes(report: &mut TrafficReport, path: &CallPath, names: Vec<String>) -> Result<(), Invalid> {
    bounded("processes", names.len(), MAX_CALLING_PROCESSES)?;
    if names.is_empty() || path.caller.is_some() {
        return Ok(());
    }
    // Tables and logs show the names.
    let is_name = |name: &String| {
        (1..=MAX_PROCESS_NAME).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic())
    };
    if !names.iter().all(is_name) {
        let hint = format!("send visible ASCII characters without spaces, at most {MAX_PROCESS_NAME}");
        return Err(Invalid::new("processes", "has an invalid name", hint));
    }
    let known = report.processes.entry((path.service.clone(), path.from.clone())).or_default();
    let room = MAX_CALLING_PROCESSES.saturating_sub(known.len());
    known.extend(names.into_iter().take(room));
    Ok(())
}

fn plausible(field: &str, value: u64, most: u64) -> Result<(), Invalid> {
    match value <= most {
        true => Ok(()),
        false => Err(Invalid::new(field, format!("{value} is more than {most}"), "report what was counted")),
    }
}

fn optional<N: TryFrom<String, Error = Invalid>>(field: &str, text: String) -> Result<Option<N>, Invalid> {
    (!text.is_empty()).then(|| N::try_from(text).map_err(|e| e.within(field))).transpose()
}

fn write_servers((service, region): (ServiceName, Region), rates: ServerRates) -> v1::ServerRates {
    let metric = |(name, MetricSum { sum, servers })| v1::MetricSum { name, sum, servers };
    v1::ServerRates {
        service: service.to_string(),
        region: region.into(),
        servers: rates.servers,
        counting: rates.counting,
        received: rates.received,
        refused: rates.refused,
        cpu_millicores: rates.cpu_millicores,
        limit_millicores: rates.limit_millicores,
        measured: rates.measured,
        age_ms: write_age(rates.age()),
        metrics: rates.metrics.into_iter().map(metric).collect(),
        by_utilisation: without_trailing_zeros(&rates.by_utilisation),
    }
}

fn without_trailing_zeros(counts: &[u32]) -> Vec<u32> {
    let used = counts.iter().rposition(|count| *count > 0).map_or(0, |last| last + 1);
    counts[..used].to_vec()
}

fn read_servers(message: v1::ServerRates) -> Result<((ServiceName, Region), ServerRates), Invalid> {
    bounded("metrics", message.metrics.len(), ServerRates::MAX_METRICS)?;
    bounded("byUtilisation", message.by_utilisation.len(), UTILISATION_LEVELS)?;
    let mut metrics = BTreeMap::new();
    for v1::MetricSum { name, sum, servers } in message.metrics {
        LoadSignal::Metric(name.clone()).validate().map_err(|e| e.within("metrics"))?;
        if !sum.is_finite() || sum < 0.0 {
            let problem = format!("'{name}' is {sum}");
            return Err(Invalid::new("metrics", problem, "report finite numbers of 0 and above"));
        }
        metrics.insert(name, MetricSum { sum, servers });
    }
    plausible("received", message.received.max(message.refused), MAX_RATE)?;
    plausible("limitMillicores", message.limit_millicores.max(message.cpu_millicores), MAX_RATE)?;
    let group = (
        ServiceName::new(&message.service).map_err(|e| e.within("service"))?,
        Region::try_from(message.region).map_err(|e| e.within("region"))?,
    );
    let measured = match message.measured {
        // The previous release does not send the number of measured servers.
        0 if message.limit_millicores > 0 => message.servers,
        measured => measured,
    };
    let mut rates = ServerRates {
        measured,
        servers: message.servers,
        counting: message.counting,
        received: message.received,
        refused: message.refused,
        cpu_millicores: message.cpu_millicores,
        limit_millicores: message.limit_millicores,
        metrics,
        ..ServerRates::default()
    };
    rates.by_utilisation[..message.by_utilisation.len()].copy_from_slice(&message.by_utilisation);
    rates.grow_older(read_age(message.age_ms));
    Ok((group, rates))
}

#[cfg(test)]
mod tests {
    use fairmesh_model::CallNode;
    use prost::Message as _;

    use super::*;

    /// Reads the rates of a report that has rates.
    fn read(mut message: v1::ReportSignalsRequest) -> Result<TrafficReport, Invalid> {
        message.take_rates().map(|rates| rates.expect("a sender"))
    }

    fn report() -> TrafficReport {
        let [eu, us] = ["eu", "us"].map(|name| Region::new(name).unwrap());
        let service = ServiceName::new("shop/cart").unwrap();
        let path = |to: Option<&Region>, class: Option<&str>| CallPath {
            service: service.clone(),
            from: eu.clone(),
            to: to.cloned(),
            class: class.map(|class| class.parse().unwrap()),
            caller: None,
            from_zone: None,
            to_zone: None,
            parent: class.map(|_| CallNode { service: service.clone(), class: Some("web".parse().unwrap()) }),
        };
        let rates = |n| {
            let counted = CallRates {
                offered: n,
                attempts: n + 1,
                answered: n,
                shed: 1,
                time_us: 7,
                bytes: 9,
                request_bytes: 11,
                ..CallRates::default()
            };
            let mut rates = counted;
            rates.grow_older(Duration::from_millis(n));
            rates
        };
        let metrics = [("queue".to_owned(), MetricSum { sum: 1.5, servers: 2 })];
        let mut servers =
            ServerRates { servers: 2, counting: 1, metrics: metrics.into(), ..Default::default() };
        (servers.by_utilisation[3], servers.by_utilisation[15]) = (1, 1);
        servers.grow_older(Duration::from_millis(1_250));
        TrafficReport {
            reporter: 7,
            interval: Duration::from_secs(1),
            regions: [eu.clone(), us.clone()].into(),
            calls: [(path(Some(&us), None), rates(1_000)), (path(None, Some("bulk")), rates(2))].into(),
            processes: [((service.clone(), eu.clone()), ["web-1/edge".to_owned()].into())].into(),
            left_out: 3,
            incomplete: [ServiceName::new("shop/zoo").unwrap()].into(),
            incomplete_tenants: [Tenant::new("red").unwrap()].into(),
            all_incomplete: false,
            servers: [((service.clone(), us.clone()), servers)].into(),
            served: [None, Some(0), Some(9)]
                .map(|bucket| served_calls::tests::row(&service, &us, bucket))
                .into(),
        }
    }

    #[test]
    fn traffic_reports_round_trip_through_wire_form() {
        assert_eq!(read(v1::ReportSignalsRequest::from(report())), Ok(report()));
    }

    #[test]
    fn taking_rates_from_report_keeps_its_usage_minutes() {
        let usages = vec![v1::InstanceUsage { service: "shop/cart".into(), ..Default::default() }];
        let mut message = v1::ReportSignalsRequest { usages: usages.clone(), ..report().into() };
        assert_eq!(message.take_rates(), Ok(Some(report())));
        assert_eq!(message, v1::ReportSignalsRequest { usages, ..Default::default() });
        assert_eq!(message.take_rates(), Ok(None), "minutes alone are no report of nothing");
    }

    #[test]
    fn traffic_report_without_sender_is_refused() {
        let message = v1::ReportSignalsRequest { sender: None, ..report().into() };
        assert!(read(message).unwrap_err().to_string().contains("sender"));
    }

    #[test]
    fn traffic_report_of_later_release_is_read_without_new_fields() {
        let mut bytes = v1::ReportSignalsRequest::from(report()).encode_to_vec();
        // Field 99 is a message: a row of a new kind.
        bytes.extend([0x9a, 0x06, 2, 8, 1]);
        assert_eq!(read(v1::ReportSignalsRequest::decode(&bytes[..]).unwrap()), Ok(report()));
    }

    #[test]
    fn traffic_report_that_marks_all_services_incomplete_round_trips() {
        let names = (0..MAX_INCOMPLETE_SERVICES).map(|n| ServiceName::new(format!("shop/s{n}")).unwrap());
        let full = TrafficReport { incomplete: names.collect(), all_incomplete: true, ..report() };
        assert_eq!(read(full.clone().into()), Ok(full.clone()));
        let mut previous = v1::ReportSignalsRequest::from(full.clone());
        previous.all_incomplete = false;
        assert_eq!(read(previous), Ok(full), "the previous release says so by the number of names");
        let few = TrafficReport { all_incomplete: true, ..report() };
        assert_eq!(read(few.clone().into()), Ok(few));
    }

    #[test]
    fn sum_of_valid_traffic_reports_is_valid() {
        let mut greatest = v1::ReportSignalsRequest::from(report());
        greatest.calls.iter_mut().for_each(|calls| calls.offered = MAX_RATE);
        greatest.servers.iter_mut().for_each(|servers| {
            (servers.received, servers.limit_millicores) = (MAX_RATE, MAX_RATE);
            servers.metrics.iter_mut().for_each(|metric| metric.sum = f64::MAX);
        });
        let mut sum = read(greatest.clone()).unwrap();
        let more = read(greatest).unwrap();
        sum.calls.iter_mut().for_each(|(path, rates)| *rates += more.calls[path]);
        sum.servers.iter_mut().for_each(|(group, rates)| *rates += &more.servers[group]);
        assert!(read(sum.into()).is_ok());
    }

    #[test]
    fn traffic_reports_beyond_bounds_or_with_invalid_names_are_refused() {
        let refusal_of = |change: fn(&mut v1::ReportSignalsRequest)| {
            let mut message = v1::ReportSignalsRequest::from(report());
            change(&mut message);
            read(message).unwrap_err().to_string()
        };
        let refusal =
            refusal_of(|message| message.calls = vec![message.calls[0].clone(); MAX_CALL_PATHS + 1]);
        assert!(refusal.contains("at most 4096"), "{refusal}");
        assert!(refusal_of(|message| message.calls[0].service = "cart".into()).contains("calls[0].service"));
        assert!(
            refusal_of(|message| message.sender.as_mut().unwrap().regions.push("a region".into()))
                .contains("regions")
        );
        assert!(
            refusal_of(|message| message.calls[0].parent_service = "web".into()).contains("parent.service")
        );
        assert!(refusal_of(|message| message.served[0].bucket = 11).contains("served[0].bucket"));
        assert!(refusal_of(|message| message.incomplete.push("zoo".into())).contains("incomplete"));
        for name in ["", "two words", "\u{1b}[2J"] {
            let mut message = v1::ReportSignalsRequest::from(report());
            message.calls[0].processes = vec![name.to_owned()];
            let refusal = read(message).unwrap_err().to_string();
            assert!(refusal.contains("calls[0].processes"), "{refusal}");
        }
        let tenant = refusal_of(|message| message.incomplete_tenants.push("a/b".into()));
        assert!(tenant.contains("incomplete_tenants"), "{tenant}");
        let many =
            refusal_of(|message| message.incomplete = vec!["shop/zoo".into(); MAX_INCOMPLETE_SERVICES + 1]);
        assert!(many.contains("at most 1024"), "{many}");
        let metric =
            |message: &mut v1::ReportSignalsRequest| message.servers[0].metrics[0].name = "a b".into();
        assert!(refusal_of(metric).contains("metrics"));
        assert!(refusal_of(|message| message.servers[0].metrics[0].sum = f64::NAN).contains("metrics"));
        assert!(refusal_of(|message| message.calls[0].offered = u64::MAX).contains("rates"));
        assert!(
            refusal_of(|message| message.servers[0].limit_millicores = u64::MAX).contains("limitMillicores")
        );
    }
}
