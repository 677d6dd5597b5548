//! Counts of calls.

use std::time::Duration;

use fairmesh_model::{
    CallCounts, CountReport, CountedBy, CountedInterval, CountedPath, CpuBy, CpuPath, DeniedPath, Invalid,
    MAX_COUNT_INTERVALS, MAX_COUNT_ROWS, MAX_DENIED_CALLER, ServiceName,
};

use super::{bounded, optional};
use crate::v1;

/// Maximum plausible count. No mesh makes that many calls in an interval, and sums of such counts stay far from
/// overflow.
const MAX_COUNT: u64 = 1 << 53;

impl From<CountReport> for v1::CountReport {
    fn from(report: CountReport) -> Self {
        Self {
            reporter: report.reporter,
            number: report.number,
            intervals: report.intervals.into_iter().map(write_interval).collect(),
            left_out: report.left_out,
        }
    }
}

impl v1::ReportSignalsRequest {
    /// Takes the counts out of the message, leaving rates and minutes. Returns `None` for a report without counts.
    /// Rows with implausible counts are dropped, so that the other rows still count. The number of dropped rows is
    /// returned with the report, and is included in its [`left_out`](CountReport::left_out).
    ///
    /// # Errors
    /// With the path of the field, if the counts are invalid or exceed the limits of a report.
    pub fn take_counts(&mut self) -> Result<Option<(CountReport, u64)>, Invalid> {
        let Some(counts) = self.counts.take() else { return Ok(None) };
        read(counts).map(Some).map_err(|e| e.within("counts"))
    }
}

fn read(mut message: v1::CountReport) -> Result<(CountReport, u64), Invalid> {
    let rows = message.intervals.iter().map(rows).sum();
    bounded("intervals", message.intervals.len(), MAX_COUNT_INTERVALS)?;
    bounded("rows", rows, MAX_COUNT_ROWS)?;
    let left_out = message.intervals.iter_mut().map(leave_out_implausible).sum();
    let intervals = message.intervals.into_iter().enumerate();
    let intervals = intervals
        .map(|(i, interval)| read_interval(interval).map_err(|e| e.within(format!("intervals[{i}]"))))
        .collect::<Result<_, _>>()?;
    let (reporter, number) = (message.reporter, message.number);
    let report =
        CountReport { reporter, number, intervals, left_out: message.left_out.saturating_add(left_out) };
    Ok((report, left_out))
}

/// Removes rows with implausible counts. Returns the number of removed rows.
fn leave_out_implausible(interval: &mut v1::CountedInterval) -> u64 {
    let before = rows(interval);
    interval.calls.retain(|row| read_counts(row).values().iter().all(|number| *number <= MAX_COUNT));
    interval.denied.retain(|row| row.count <= MAX_COUNT);
    interval.cpu.retain(|row| row.cpu_us <= MAX_COUNT);
    (before - rows(interval)) as u64
}

fn rows(interval: &v1::CountedInterval) -> usize {
    interval.calls.len() + interval.denied.len() + interval.cpu.len()
}

fn write_interval(interval: CountedInterval) -> v1::CountedInterval {
    v1::CountedInterval {
        age_ms: u64::try_from(interval.age.as_millis()).unwrap_or(u64::MAX),
        span_ms: u32::try_from(interval.span.as_millis()).unwrap_or(u32::MAX),
        calls: interval.calls.iter().map(|(path, counts)| write_calls(path, counts)).collect(),
        denied: interval.denied.iter().map(|(path, count)| write_denied(path, *count)).collect(),
        cpu: interval.cpu.iter().map(|(path, cpu_us)| write_cpu(path, *cpu_us)).collect(),
    }
}

fn read_interval(message: v1::CountedInterval) -> Result<CountedInterval, Invalid> {
    let mut interval = CountedInterval {
        age: Duration::from_millis(message.age_ms),
        span: Duration::from_millis(message.span_ms.into()),
        ..CountedInterval::default()
    };
    for (i, calls) in message.calls.into_iter().enumerate() {
        let (path, counts) = read_calls(calls).map_err(|e| e.within(format!("calls[{i}]")))?;
        *interval.calls.entry(path).or_default() += &counts;
    }
    for (i, denied) in message.denied.into_iter().enumerate() {
        let (path, count) = read_denied(denied).map_err(|e| e.within(format!("denied[{i}]")))?;
        let sum = interval.denied.entry(path).or_default();
        *sum = sum.saturating_add(count);
    }
    for (i, cpu) in message.cpu.into_iter().enumerate() {
        let (path, cpu_us) = read_cpu(&cpu).map_err(|e| e.within(format!("cpu[{i}]")))?;
        let sum = interval.cpu.entry(path).or_default();
        *sum = sum.saturating_add(cpu_us);
    }
    Ok(interval)
}

/// Converts a row of calls to a message.
pub fn write_calls(path: &CountedPath, counts: &CallCounts) -> v1::CountedCalls {
    let text = |name: Option<&ServiceName>| name.map(ToString::to_string).unwrap_or_default();
    v1::CountedCalls {
        service: path.service.to_string(),
        caller: text(path.caller.as_ref()),
        by_server: path.by == CountedBy::Server,
        class: path.class.clone().map(String::from).unwrap_or_default(),
        from: path.from.clone().map(String::from).unwrap_or_default(),
        to: path.to.clone().map(String::from).unwrap_or_default(),
        from_zone: path.from_zone.clone().map(String::from).unwrap_or_default(),
        to_zone: path.to_zone.clone().map(String::from).unwrap_or_default(),
        ..write_counts(counts)
    }
}

/// Converts counts to a row without a path.
pub fn write_counts(counts: &CallCounts) -> v1::CountedCalls {
    v1::CountedCalls {
        calls: bounded_count(counts.calls()),
        retries: bounded_count(counts.retries()),
        time_us: bounded_count(counts.time_us()),
        request_bytes: bounded_count(counts.request_bytes()),
        response_bytes: bounded_count(counts.response_bytes()),
        responses: trimmed(counts.responses()),
        faults: trimmed(counts.faults()),
        latency: trimmed(counts.latency()),
        ..v1::CountedCalls::default()
    }
}

/// Removes trailing zeros.
fn trimmed(numbers: &[u64]) -> Vec<u64> {
    let len = numbers.iter().rposition(|number| *number != 0).map_or(0, |last| last + 1);
    numbers[..len].iter().copied().map(bounded_count).collect()
}

/// Caps a count at the maximum that receivers accept. Only sums can exceed it; receivers would drop their row.
fn bounded_count(number: u64) -> u64 {
    number.min(MAX_COUNT)
}

/// Reads the counts of a row.
pub fn read_counts(message: &v1::CountedCalls) -> CallCounts {
    let v1::CountedCalls { calls, retries, time_us, request_bytes, response_bytes, .. } = *message;
    CallCounts::ZERO.with_totals([calls, retries, time_us, request_bytes, response_bytes]).with_outcomes(
        &message.responses,
        &message.faults,
        &message.latency,
    )
}

/// Reads a row of calls.
///
/// # Errors
/// With the path of the invalid field.
pub fn read_calls(message: v1::CountedCalls) -> Result<(CountedPath, CallCounts), Invalid> {
    for (field, numbers) in
        [("responses", &message.responses), ("faults", &message.faults), ("latency", &message.latency)]
    {
        bounded(field, numbers.len(), MAX_NUMBERS)?;
    }
    let counts = read_counts(&message);
    let path = CountedPath {
        service: ServiceName::new(&message.service).map_err(|e| e.within("service"))?,
        caller: optional("caller", message.caller)?,
        by: if message.by_server { CountedBy::Server } else { CountedBy::Caller },
        class: optional("class", message.class)?,
        from: optional("from", message.from)?,
        to: optional("to", message.to)?,
        from_zone: optional("from_zone", message.from_zone)?,
        to_zone: optional("to_zone", message.to_zone)?,
    };
    Ok((path, counts))
}

/// Maximum length of a list of counts. A later release may send longer lists than this release.
const MAX_NUMBERS: usize = 256;

/// Converts a row of denied calls to a message.
pub fn write_denied(path: &DeniedPath, count: u64) -> v1::DeniedCalls {
    v1::DeniedCalls {
        service: path.service.to_string(),
        caller: path.caller.clone().unwrap_or_default(),
        rule: path.rule.clone().map(String::from).unwrap_or_default(),
        audit: path.is_audit,
        count: bounded_count(count),
        method: path.method.clone(),
        path: path.path.clone(),
    }
}

fn read_denied(message: v1::DeniedCalls) -> Result<(DeniedPath, u64), Invalid> {
    let texts = [
        ("caller", &message.caller, "send a SPIFFE id"),
        ("method", &message.method, "send an HTTP method"),
        ("path", &message.path, "send the path of a request"),
    ];
    for (field, text, hint) in texts {
        bounded(field, text.len(), MAX_DENIED_CALLER)?;
        if text.chars().any(char::is_control) {
            return Err(Invalid::new(field, "has control characters", hint));
        }
    }
    let path = DeniedPath {
        service: ServiceName::new(&message.service).map_err(|e| e.within("service"))?,
        caller: Some(message.caller).filter(|caller| !caller.is_empty()),
        rule: optional("rule", message.rule)?,
        is_audit: message.audit,
        method: message.method,
        path: message.path,
    };
    Ok((path, message.count))
}

fn write_cpu(path: &CpuPath, cpu_us: u64) -> v1::AttributedCpu {
    v1::AttributedCpu {
        service: path.service.to_string(),
        by_origin: path.by == CpuBy::Origin,
        user: path.user.to_string(),
        cpu_us: bounded_count(cpu_us),
    }
}

fn read_cpu(message: &v1::AttributedCpu) -> Result<(CpuPath, u64), Invalid> {
    let path = CpuPath {
        service: ServiceName::new(&message.service).map_err(|e| e.within("service"))?,
        by: if message.by_origin { CpuBy::Origin } else { CpuBy::Caller },
        user: message.user.parse().map_err(|e: Invalid| e.within("user"))?,
    };
    Ok((path, message.cpu_us))
}

#[cfg(test)]
mod tests {
    use fairmesh_model::CpuUser;
    use prost::Message as _;

    use super::*;

    fn report() -> CountReport {
        let path = CountedPath {
            service: ServiceName::new("shop/cart").unwrap(),
            caller: Some(ServiceName::new("shop/web").unwrap()),
            by: CountedBy::Server,
            class: Some("bulk".parse().unwrap()),
            from: None,
            to: Some("eu".parse().unwrap()),
            from_zone: None,
            to_zone: Some("eu-1".parse().unwrap()),
        };
        let counts = CallCounts::from_values(std::array::from_fn(|i| i as u64 % 5));
        let denied = DeniedPath {
            service: ServiceName::new("shop/cart").unwrap(),
            caller: Some("spiffe://mesh/shop/ads".into()),
            rule: None,
            is_audit: true,
            method: "GET".into(),
            path: "/items/*".into(),
        };
        let interval = CountedInterval {
            age: Duration::from_secs(3),
            span: Duration::from_secs(5),
            calls: [(path, counts)].into(),
            denied: [(denied, 3)].into(),
            cpu: [CpuUser::Unknown, CpuUser::Service(ServiceName::new("shop/web").unwrap())]
                .into_iter()
                .map(|user| {
                    (CpuPath { service: ServiceName::new("shop/cart").unwrap(), by: CpuBy::Origin, user }, 7)
                })
                .collect(),
        };
        CountReport { reporter: 7, number: 2, intervals: vec![interval], left_out: 1 }
    }

    fn message() -> v1::ReportSignalsRequest {
        v1::ReportSignalsRequest { counts: Some(report().into()), ..Default::default() }
    }

    #[test]
    fn call_counts_round_trip_through_wire_form() {
        assert_eq!(message().take_counts(), Ok(Some((report(), 0))));
    }

    #[test]
    fn call_counts_above_receiver_maximum_are_capped() {
        let mut report = report();
        let interval = &mut report.intervals[0];
        interval.calls.values_mut().for_each(|counts| *counts = CallCounts::from_values([u64::MAX; _]));
        interval.denied.values_mut().for_each(|count| *count = u64::MAX);
        let sent = v1::ReportSignalsRequest { counts: Some(report.into()), ..Default::default() };
        let (taken, left_out) = { sent }.take_counts().unwrap().unwrap();
        assert_eq!(left_out, 0);
        let sums = taken.intervals[0].calls.values().flat_map(|counts| *counts.values());
        assert!(sums.chain(taken.intervals[0].denied.values().copied()).all(|number| number == MAX_COUNT));
    }

    #[test]
    fn only_implausible_call_count_rows_are_left_out() {
        let mut message = message();
        let interval = &mut message.counts.as_mut().unwrap().intervals[0];
        let (calls, denied) = (interval.calls[0].clone(), interval.denied[0].clone());
        interval.calls.push(v1::CountedCalls { request_bytes: MAX_COUNT + 1, ..calls.clone() });
        interval.calls.push(v1::CountedCalls { latency: vec![u64::MAX], ..calls });
        interval.denied.push(v1::DeniedCalls { count: u64::MAX, ..denied });
        let cpu = interval.cpu[0].clone();
        interval.cpu.push(v1::AttributedCpu { cpu_us: MAX_COUNT + 1, ..cpu });
        let (taken, left_out) = message.take_counts().unwrap().unwrap();
        assert_eq!((left_out, taken.left_out, taken.intervals), (4, 1 + 4, report().intervals));
    }

    #[test]
    fn previous_release_reads_call_count_report_as_empty() {
        // The previous release does not know field 8 and drops it.
        let mut bytes = message().encode_to_vec();
        let at = bytes.iter().position(|byte| *byte == 0x42).unwrap();
        bytes.truncate(at);
        let mut read = v1::ReportSignalsRequest::decode(&bytes[..]).unwrap();
        assert_eq!((read.take_rates(), read.take_counts()), (Ok(None), Ok(None)));
    }

    #[test]
    fn invalid_call_count_rows_are_refused_with_field_path() {
        let refusal = |change: fn(&mut v1::CountedInterval)| {
            let mut message = message();
            change(&mut message.counts.as_mut().unwrap().intervals[0]);
            message.take_counts().unwrap_err().to_string()
        };
        assert!(
            refusal(|one| one.calls[0].service = "cart".into())
                .contains("counts.intervals[0].calls[0].service")
        );
        assert!(refusal(|one| one.denied[0].caller = "\u{1b}[2J".into()).contains("control characters"));
        assert!(refusal(|one| one.denied[0].path = "/\u{1b}[2J".into()).contains("denied[0].path"));
        assert!(refusal(|one| one.denied[0].method = "G".repeat(513)).contains("denied[0].method"));
        assert!(refusal(|one| one.cpu[0].user = "cart".into()).contains("cpu[0].user"));
        assert!(
            refusal(|one| one.calls = vec![one.calls[0].clone(); MAX_COUNT_ROWS]).contains("at most 4096")
        );
    }
}
