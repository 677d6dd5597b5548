//! What is told of a request when its answer has ended: a line in the log, and its spans.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use bytes::Bytes;
use fairmesh_client::proxy_support::{BodyEnd, BodyObserver};
use fairmesh_headers::GRPC_STATUS;
use http::{HeaderMap, header::CONTENT_LENGTH};
use http_body::Frame;

use super::story::{Answered, Subject};
use crate::{access::Entry, service::Target};

/// Sees an answer to its end, and tells of it.
#[derive(Debug)]
pub(super) struct Ending {
    subject: Subject,
    answered: Answered,
    is_logged: bool,
    /// Whom the status counts for, where it comes behind the answer.
    codes: Option<Arc<Target>>,
    code: OnceLock<u16>,
    sent: AtomicU64,
    /// How long the answer's body is, where it says so.
    told: Option<u64>,
}

/// All that there is to tell.
#[derive(Debug)]
pub(crate) struct Ended<'a> {
    pub(crate) service: String,
    pub(crate) answered: &'a Answered,
    /// The status of a gRPC call.
    pub(crate) code: Option<u16>,
    /// How many bytes of the answer's body were read.
    pub(crate) sent: u64,
    pub(crate) end: BodyEnd,
    /// From the head of the request to the end of the answer.
    pub(crate) took: std::time::Duration,
}

impl Ended<'_> {
    /// What kind of failure it was, and words for it; `None` where it was none of the server's or the proxy's.
    pub(crate) fn problem(&self) -> Option<(String, String)> {
        let answered = self.answered;
        if let Some(fault) = answered.fault {
            return Some((fault.into(), answered.words.clone().unwrap_or_default()));
        }
        if answered.status.is_server_error() {
            return Some((answered.status.as_u16().to_string(), String::new()));
        }
        let words = match self.end {
            BodyEnd::Complete => return None,
            BodyEnd::Failed => ("broken", "the answer broke off"),
            BodyEnd::Cancelled => ("given_up", "its program did not take the whole answer"),
        };
        Some((words.0.into(), words.1.into()))
    }
}

impl Ending {
    pub(super) fn new(
        subject: Subject,
        answered: Answered,
        (is_logged, awaits_code): (bool, bool),
        headers: &HeaderMap,
    ) -> Self {
        let codes = awaits_code.then(|| Arc::clone(&subject.target));
        let told = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        let (code, sent) = (OnceLock::new(), AtomicU64::new(0));
        let ending = Self { subject, answered, is_logged, codes, code, sent, told };
        ending.read(headers);
        ending
    }

    fn read(&self, headers: &HeaderMap) {
        if let Some(code) = headers.get(GRPC_STATUS).and_then(|code| code.to_str().ok()?.parse().ok()) {
            // Said once; a server that says it again is not believed.
            let _ = self.code.set(code);
        }
    }
}

impl BodyObserver for Ending {
    fn frame(&self, frame: &Frame<Bytes>) {
        if let Some(data) = frame.data_ref() {
            self.sent.fetch_add(data.len() as u64, Relaxed);
        }
        if let Some(trailers) = frame.trailers_ref() {
            self.read(trailers);
            if let Some(target) = &self.codes {
                target.frame(frame);
            }
        }
    }

    fn ended(&self, end: BodyEnd) {
        let Self { subject, answered, .. } = self;
        let sent = self.sent.load(Relaxed);
        // Who reads by the length stops there, and does not wait to hear that nothing follows.
        let end = if end == BodyEnd::Cancelled && self.told == Some(sent) { BodyEnd::Complete } else { end };
        if let Some(target) = &self.codes {
            target.ended(end);
        }
        let ended = Ended {
            service: subject.target.handle.name().to_string(),
            answered,
            code: self.code.get().copied(),
            sent,
            end,
            took: subject.asked.began.elapsed(),
        };
        let trace = subject.span.as_ref().map(|span| span.own).or(subject.asked.context);
        if self.is_logged {
            subject.seeing.log(Entry::of(&subject.asked, &ended, trace));
        }
        if let (Some(span), Some(tracer)) = (&subject.span, &subject.seeing.tracer) {
            tracer.ended(span, &subject.asked, &ended);
        }
    }
}
