//! Authorizes the rows of counts in a report one by one. A refused row, for example of a service that the caller may
//! no longer call, does not affect the other rows. This matters because a relay's report contains the rows of many
//! processes.

use std::collections::{BTreeMap, BTreeSet};

use bytes::{BufMut as _, Bytes, BytesMut};
use fairmesh_model::{CallCounts, ServiceName};
use fairmesh_wire::{convert::call_counts, v1};
use prost::Message;
use tonic::{Code, Request, Status};

use super::{
    AccessControl, Caller,
    call_needs::Need,
    request_needs::{FRAME, Needs, decode, one_message, region, service},
};

/// The method whose reports contain counts.
const REPORT: &str = "/fairmesh.v1.Signals/Report";

/// Number of rows removed from a report because its sender may not report them. Stored in the request's extensions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefusedRows(u64);

impl RefusedRows {
    /// Returns the number of rows removed from a request.
    pub fn of<T>(request: &Request<T>) -> u64 {
        request.extensions().get::<Self>().map_or(0, |refused| refused.0)
    }
}

/// A report that contains rows of counts.
#[derive(Debug)]
pub struct CountedRows {
    report: v1::ReportSignalsRequest,
    subjects: BTreeSet<RowSubject>,
}

/// Fields of a row that decide whether it may be reported: the called service, the reporting service and the region.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowSubject {
    called: Option<ServiceName>,
    own: Option<ServiceName>,
    /// `None` for rows of denied calls and of CPU.
    region: Option<String>,
}

/// Subjects whose rows are refused, with the reasons.
pub type RefusedSubjects = BTreeMap<RowSubject, Status>;

impl CountedRows {
    /// Reads the report in a call's body; `None` if the call has no rows of counts.
    ///
    /// # Errors
    /// When the message is malformed, for example if a row names an invalid service.
    pub fn of(path: &str, body: &[u8]) -> Result<Option<Self>, Status> {
        if path != REPORT {
            return Ok(None);
        }
        let report: v1::ReportSignalsRequest = decode(one_message(body)?)?;
        let intervals = report.counts.iter().flat_map(|counts| &counts.intervals);
        let subjects = intervals.flat_map(|interval| {
            let denied = interval.denied.iter().map(RowSubject::of_denied);
            let cpu = interval.cpu.iter().map(RowSubject::of_cpu);
            interval.calls.iter().map(RowSubject::of_calls).chain(denied).chain(cpu)
        });
        let subjects = subjects.collect::<Result<BTreeSet<_>, _>>()?;
        Ok((!subjects.is_empty()).then_some(Self { report, subjects }))
    }

    /// Returns the distinct subjects of all rows.
    pub fn subjects(&self) -> impl Iterator<Item = &RowSubject> {
        self.subjects.iter()
    }

    /// Returns the body without the rows of refused subjects. Removed rows count as left out, unless all their counts
    /// are zero.
    ///
    /// # Errors
    /// If no row remains, the reason for the first refused subject.
    pub fn without(mut self, refused: &RefusedSubjects) -> Result<(Bytes, RefusedRows), Status> {
        if refused.len() == self.subjects.len()
            && let Some((_, reason)) = refused.first_key_value()
        {
            return Err(reason.clone());
        }
        let is_kept = |subject: Result<RowSubject, Status>| {
            subject.is_ok_and(|subject| !refused.contains_key(&subject))
        };
        let mut left_out = 0;
        for interval in self.report.counts.iter_mut().flat_map(|counts| &mut counts.intervals) {
            interval.calls.retain(|row| {
                let is_kept = is_kept(RowSubject::of_calls(row));
                left_out += u64::from(!is_kept && call_counts::read_counts(row) != CallCounts::ZERO);
                is_kept
            });
            interval.denied.retain(|row| {
                let is_kept = is_kept(RowSubject::of_denied(row));
                left_out += u64::from(!is_kept);
                is_kept
            });
            interval.cpu.retain(|row| {
                let is_kept = is_kept(RowSubject::of_cpu(row));
                left_out += u64::from(!is_kept);
                is_kept
            });
        }
        if let Some(counts) = &mut self.report.counts {
            counts.left_out = counts.left_out.saturating_add(left_out);
        }
        Ok((framed(&self.report), RefusedRows(left_out)))
    }
}

impl RowSubject {
    /// Rows from a server name the caller; rows from a caller name the caller's own service.
    fn of_calls(row: &v1::CountedCalls) -> Result<Self, Status> {
        let called = service(&row.service)?;
        let (called, own, from) = match row.by_server {
            true => (None, Some(called), &row.to),
            false => {
                let own = Some(&row.caller).filter(|caller| !caller.is_empty());
                (Some(called), own.map(|caller| service(caller)).transpose()?, &row.from)
            }
        };
        Ok(Self { called, own, region: Some(from.clone()) })
    }

    fn of_denied(row: &v1::DeniedCalls) -> Result<Self, Status> {
        Ok(Self { called: None, own: Some(service(&row.service)?), region: None })
    }

    fn of_cpu(row: &v1::AttributedCpu) -> Result<Self, Status> {
        Ok(Self { called: None, own: Some(service(&row.service)?), region: None })
    }

    /// Returns the permissions that the subject's rows require.
    ///
    /// # Errors
    /// When the region's name is invalid.
    pub fn needs(&self) -> Needs {
        let region = self.region.as_deref().map(|name| region(name).map(Need::ReportFor)).transpose()?;
        let called = self.called.clone().map(Need::CallFrom);
        Ok(called.into_iter().chain(region).chain(self.own.clone().map(Need::ServeAny)).collect())
    }
}

/// Whether a status refuses a single row, rather than reporting that no decision was possible.
pub fn is_refusal(status: &Status) -> bool {
    matches!(status.code(), Code::PermissionDenied | Code::NotFound)
}

impl AccessControl {
    /// Returns the body of an authorized call without the rows of counts and the statements that its caller may not
    /// report.
    ///
    /// # Errors
    /// If no row remains, or the message is malformed.
    pub fn keep_permitted_rows(
        &self,
        maker: &Caller,
        (path, body): (&str, Bytes),
    ) -> Result<(Bytes, RefusedRows), Status> {
        let body = self.keep_permitted_statements(maker, (path, body))?;
        let Some(rows) = CountedRows::of(path, &body)? else { return Ok((body, RefusedRows::default())) };
        let grants = self.grants(maker);
        let mut refused = RefusedSubjects::new();
        for subject in rows.subjects() {
            let needs = subject.needs()?;
            if let Err(reason) = needs.iter().try_for_each(|need| self.check_one(&grants, maker, need)) {
                tracing::debug!(caller = %maker, reason = reason.message(), "rows of a report are refused");
                refused.insert(subject.clone(), reason);
            }
        }
        if refused.is_empty() { Ok((body, RefusedRows::default())) } else { rows.without(&refused) }
    }
}

/// Encodes a report as a length-prefixed message.
pub(super) fn framed(report: &impl Message) -> Bytes {
    let length = report.encoded_len();
    let mut body = BytesMut::with_capacity(FRAME + length);
    body.put_u8(0);
    body.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    body.put_slice(&report.encode_to_vec());
    body.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(service: &str, caller: &str, calls: u64) -> v1::CountedCalls {
        let (service, caller) = (service.to_owned(), caller.to_owned());
        v1::CountedCalls { service, caller, calls, from: "eu".into(), ..Default::default() }
    }

    fn report(calls: Vec<v1::CountedCalls>) -> Bytes {
        let denied = v1::DeniedCalls { service: "shop/web".into(), count: 2, ..v1::DeniedCalls::default() };
        let interval = v1::CountedInterval { calls, denied: vec![denied], ..Default::default() };
        let counts = v1::CountReport { intervals: vec![interval], left_out: 1, ..Default::default() };
        framed(&v1::ReportSignalsRequest { counts: Some(counts), ..Default::default() })
    }

    fn refuse(rows: &CountedRows, is_refused: impl Fn(&RowSubject) -> bool) -> RefusedSubjects {
        let refused = rows.subjects().filter(|subject| is_refused(subject));
        refused.map(|subject| (subject.clone(), Status::not_found("gone"))).collect()
    }

    #[test]
    fn report_rows_without_permission_are_removed_and_others_stay() {
        let gone = || ServiceName::new("bank/rates").unwrap();
        let calls = vec![
            row("shop/cart", "shop/web", 5),
            row("bank/rates", "shop/web", 3),
            row("bank/rates", "shop/web", 0),
        ];
        let rows = CountedRows::of(REPORT, &report(calls)).unwrap().unwrap();
        assert_eq!(rows.subjects().count(), 3, "each once");
        let refused = refuse(&rows, |subject| subject.called == Some(gone()));
        let (body, left_out) = rows.without(&refused).unwrap();
        let mut report = v1::ReportSignalsRequest::decode(one_message(&body).unwrap()).unwrap();
        let counts = report.counts.take().unwrap();
        assert_eq!((left_out, counts.left_out), (RefusedRows(1), 2), "a row of zeros is not missed");
        assert_eq!(counts.intervals[0].calls, [row("shop/cart", "shop/web", 5)]);
        assert_eq!(counts.intervals[0].denied.len(), 1);
    }

    #[test]
    fn report_without_permitted_row_is_refused() {
        let rows = CountedRows::of(REPORT, &report(vec![row("shop/cart", "", 5)])).unwrap().unwrap();
        let refused = refuse(&rows, |_| true);
        assert_eq!(rows.without(&refused).unwrap_err().code(), Code::NotFound);
    }

    #[test]
    fn report_rows_require_permission_for_their_service_and_region() {
        let name = |name: &str| ServiceName::new(name).unwrap();
        let subject = RowSubject::of_calls(&row("shop/cart", "shop/web", 1)).unwrap();
        let region = Need::ReportFor("eu".parse().unwrap());
        let expected = [Need::CallFrom(name("shop/cart")), region, Need::ServeAny(name("shop/web"))];
        assert_eq!(subject.needs().unwrap(), expected);
        let by_server = v1::CountedCalls { by_server: true, to: "us".into(), ..row("shop/cart", "x/y", 1) };
        let subject = RowSubject::of_calls(&by_server).unwrap();
        let expected = [Need::ReportFor("us".parse().unwrap()), Need::ServeAny(name("shop/cart"))];
        assert_eq!(subject.needs().unwrap(), expected, "who called is the server's word");
        let malformed = CountedRows::of(REPORT, &report(vec![row("cart", "", 1)]));
        assert_eq!(malformed.unwrap_err().code(), Code::InvalidArgument);
        assert!(CountedRows::of("/fairmesh.v1.Rib/Read", b"").unwrap().is_none());
    }
}
