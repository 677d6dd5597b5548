//! Records how a call ends for traffic reports: the only place, for the library, proxies and the in-kernel proxy.

use std::sync::{Arc, Mutex, PoisonError};

use fairmesh_headers::{GRPC_STATUS, is_grpc};
use fairmesh_model::{CallFault, ResponseClass};
use fairmesh_signals::CallCounters;
use http::{HeaderMap, StatusCode};

use super::state::Call;
use crate::{
    discovery::{EndpointTransport, ServiceState},
    fault::carried_fault,
};

/// Counts the bytes of a request body that arrive while the request is sent. The count belongs to the attempt that
/// sends them.
#[derive(Debug, Default)]
pub(crate) struct StreamedBytes(Mutex<Option<Arc<CallCounters>>>);

impl StreamedBytes {
    /// Counts bytes for this attempt from now on.
    pub(super) fn begin(&self, attempt: &Arc<CallCounters>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(attempt));
    }

    pub(super) fn count(&self, bytes: u64) {
        if let Some(attempt) = &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            attempt.record_request_bytes(bytes);
        }
    }
}

impl<T: EndpointTransport> Call<'_, T> {
    /// Counts the final response by its response class.
    #[inline]
    pub(crate) fn report_response(&self, class: ResponseClass) {
        if let Some(reported) = self.attempt.as_ref().and_then(|attempt| attempt.reported.as_ref()) {
            reported.counters.record_response(class);
        }
    }

    /// Counts the final response by its head. Returns `true` if the gRPC status follows in the trailers and must be
    /// counted there.
    pub(crate) fn report_head(&mut self, status: StatusCode, headers: &HeaderMap) -> bool {
        let grpc_status = headers.get(&GRPC_STATUS);
        let may_carry_fault = grpc_status.is_some() || !status.is_success();
        if let Some(kind) = may_carry_fault.then(|| carried_fault(headers)).flatten() {
            self.report_fault(kind.into());
            return false;
        }
        match grpc_status {
            Some(grpc) => self.report_response(ResponseClass::of_grpc(grpc == "0")),
            None if status.is_success() && is_grpc(headers) => return true,
            None => self.report_response(ResponseClass::of_status(status.as_u16())),
        }
        false
    }

    /// Counts that the call ended without a response from its service. A call is counted once, even if several
    /// callers notice the fault. The fault is counted at the last attempt's path, or among calls that reached no
    /// server if no attempt is in flight. Calls to a backend without records count as calls of the called service.
    #[cold]
    pub(crate) fn report_fault(&mut self, fault: CallFault) {
        if std::mem::replace(&mut self.is_concluded, true) {
            return;
        }
        if let Some(reported) = self.attempt.as_ref().and_then(|attempt| attempt.reported.as_ref()) {
            return reported.counters.record_fault(fault);
        }
        let (state, called) = (self.snapshot(), self.service.borrow_state());
        let ((ServiceState::Ready(ready), _) | (_, ServiceState::Ready(ready))) = (&**state, &**called)
        else {
            return;
        };
        let Some(paths) = ready.reported() else { return };
        let counters = paths.to_nowhere(self.reported_as());
        counters.record_fault(fault);
        if !std::mem::replace(&mut self.is_reported, true) {
            counters.record_unsent(false);
        }
    }
}
