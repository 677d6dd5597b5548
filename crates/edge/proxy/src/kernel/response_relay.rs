//! Relays responses unchanged from the pooled connection to the caller's socket.
//!
//! A response qualifies under the conditions that the kernel itself applies for local servers: it is plain,
//! has arrived completely, and its caller has received and read all earlier ones. The rejected way, through
//! the task of the caller's connection, would cost a second wake-up, often on another core, and building a
//! full request and response.

use std::sync::Arc;

use fairmesh_edge::services::host_cache::HostCache;
use fairmesh_headers::LOAD;
use fairmesh_http::h1::{BorrowedResponse, header_storage};
use fairmesh_kernel::{CompletedCall, Slot};

use crate::kernel::{
    attached_maps::Attached, completed_calls::record, published_endpoint::PublishedEndpoint,
    served_caller::ServedCaller,
};

/// Maximum length of a response that is relayed, in bytes.
pub(super) const MAX_RESPONSE: usize = 64 * 1024;

/// Relays the response to the kernel's request on the connection with this slot. Returns whether it was relayed.
pub(super) fn relay(
    attached: &Arc<Attached>,
    endpoint: &PublishedEndpoint,
    slot: &Slot,
    hosts: &HostCache,
    response: &[u8],
) -> bool {
    let Some(caller) = slot.direct_caller().and_then(|cookie| attached.callers().get(&cookie).cloned())
    else {
        return false;
    };
    let mut storage = header_storage();
    let Some(found) = BorrowedResponse::read(response, &mut storage).filter(is_plain) else { return false };
    let head = &response[..response.len() - found.body.len()];
    if !caller.may_relay() || !ends_lines_with_crlf(head) {
        return false;
    }
    let Some(request) = slot.take_request() else { return false };
    caller.begin_relay(response.len());
    // Done before the caller reads, so that the caller's next request finds the connection idle.
    endpoint.endpoint.uncount();
    slot.release();
    let (rest, address) = (caller.relay(response), caller.address);
    match rest {
        [] => caller.end_relay(),
        rest => relay_rest(attached, caller, rest.to_vec()),
    }
    let completed = CompletedCall {
        cookie: request.cookie,
        endpoint: request.endpoint,
        sent: request.sent,
        took: request.age,
        seed: request.seed,
        status: found.status.as_u16(),
        // Cannot truncate: at most `MAX_RESPONSE`.
        body_bytes: found.body.len() as u32,
        load: found.value(&LOAD).unwrap_or_default(),
        head: &request.bytes,
    };
    record(attached, hosts, &completed, Some(address));
    true
}

/// Whether every line ends with CRLF. Strict clients accept no other line ending, and the general path would write
/// CRLF.
fn ends_lines_with_crlf(head: &[u8]) -> bool {
    !head.starts_with(b"\n") && head.windows(2).all(|pair| pair[1] != b'\n' || pair[0] == b'\r')
}

/// Whether the response has no header that the proxy must handle.
fn is_plain(response: &BorrowedResponse<'_>) -> bool {
    response.names().all(|name| {
        let is_own = name.get(..9).is_some_and(|begin| begin.eq_ignore_ascii_case("fairmesh-"))
            || name.get(..11).is_some_and(|begin| begin.eq_ignore_ascii_case("x-fairmesh-"));
        !is_own && !name.eq_ignore_ascii_case("te")
    })
}

/// Sends the rest of a response in a separate task, because the pooled connection may carry other responses
/// meanwhile.
fn relay_rest(attached: &Attached, caller: Arc<ServedCaller>, rest: Vec<u8>) {
    attached.tasks.spawn(async move {
        caller.relay_rest(&rest).await;
        caller.end_relay();
    });
}
