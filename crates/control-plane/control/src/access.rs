//! Access control: the one place where calls over gRPC and HTTP are permitted or refused.
//!
//! Each method and route says in a table what it needs of its caller, and a test fails for one that is not listed. A check
//! in each handler was rejected: one would be forgotten. The table of methods and the decisions are in `rib::access`, since
//! replicas judge the calls that they forward by them too. Reads and watches of prefixes are the exception: `rib::server`
//! checks them.

mod caller;
mod grpc;
mod http;
mod table;
mod trust;

use std::sync::Arc;

use fairmesh_identity::RevocationList;
use fairmesh_rib::{Node, access::AccessControl};

pub(crate) use grpc::guard_calls;
pub(crate) use http::guard_pages;
use trust::RecordedTrust;

use crate::{audit::AuditLog, user_tokens::UserTokens};

/// What decides on calls. Cheap to clone.
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
