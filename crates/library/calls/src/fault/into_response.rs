//! Faults as axum responses.

use axum_core::response::{IntoResponse, Response};
use http::{HeaderValue, header::RETRY_AFTER};

use super::Fault;

/// Converts a fault to a response, so that axum handlers can pass it on with `?`. The response has the status of
/// [`http_status`](crate::FaultKind::http_status), and the message as text. It has no header `x-fairmesh-fault`,
/// since it comes from this program's service and not from a proxy on the way.
impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let mut response = (self.kind().http_status(), format!("{self}\n")).into_response();
        if let Some(wait) = self.retry_after() {
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fairmesh_headers::FAULT;

    use super::*;
    use crate::FaultKind;

    #[test]
    fn axum_handler_turns_mesh_fault_into_its_response() {
        let fault =
            Fault::new(FaultKind::RateLimited, "too many").with_retry_after(Duration::from_millis(1200));
        let response = fault.into_response();
        assert_eq!(
            (response.status().as_u16(), &response.headers()[RETRY_AFTER]),
            (429, &HeaderValue::from(2))
        );
        assert!(!response.headers().contains_key(FAULT));
    }
}
