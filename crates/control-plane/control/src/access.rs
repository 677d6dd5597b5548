//! Access control: all calls over gRPC and HTTP are permitted or refused here.
//!
//! A table lists for each method and route what it requires of its caller, and a test fails for any that is
//! not listed. A check in each handler was rejected: one would be forgotten. The table of methods and the
//! decisions are in `rib::access`, since replicas apply them to the calls that they forward. The exception
//! are reads and watches of prefixes, which `rib::server` checks.

mod caller;
mod grpc;
mod http;
mod http_permissions;
mod recorded_roots;
mod spans;

use std::sync::Arc;

use fairmesh_identity::RevocationList;
use fairmesh_rib::{Node, access::AccessControl};

pub(crate) use grpc::guard_calls;
pub(crate) use http::{PermittedPage, guard_pages};
use recorded_roots::RecordedTrust;
pub(crate) use spans::guard_spans;

use crate::{audit::AuditLog, user_tokens::UserTokens};

/// Authorizes calls. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    pub(crate) control: AccessControl,
    trust: Arc<RecordedTrust>,
    tokens: UserTokens,
    audit: AuditLog,
}

impl Access {
    pub(crate) fn new(
        control: AccessControl,
        (node, revocations): (Node, RevocationList),
        (tokens, audit): (UserTokens, AuditLog),
    ) -> Self {
        let trust = Arc::new(RecordedTrust::new(node, revocations));
        Self { control, trust, tokens, audit }
    }
}
